"""A short moving clip and a stereo sound with different channels, as a deployment would make."""

import numpy as np
import pytest
from skimage.filters import gaussian

FRAMES, HEIGHT, WIDTH, FPS = 48, 96, 128, 24
SOUND_RATE, SECONDS = 32_000, 2.0


@pytest.fixture(scope="session")
def clip() -> np.ndarray:
    """uint8 [48,96,128,3]: a soft random texture that moves two pixels a frame."""
    noise = np.random.default_rng(0).random((HEIGHT, WIDTH + 2 * FRAMES, 3))
    texture = gaussian(noise, sigma=2, channel_axis=2)
    texture = (texture - texture.min()) / np.ptp(texture) * 215 + 20
    views = [texture[:, 2 * i : 2 * i + WIDTH] for i in range(FRAMES)]
    return np.stack(views).round().astype(np.uint8)


def voice(pitch: float, seed: int, stretch: float = 1.0) -> np.ndarray:
    """float32 [n]: gliding harmonics in syllables over a little breath."""
    count = int(SECONDS * SOUND_RATE)
    t = np.arange(count) / SOUND_RATE
    phase = 2 * np.pi * stretch * (pitch * t + 12 * np.sin(2 * np.pi * 1.3 * t + seed))
    tone = sum(np.sin(k * phase) / k for k in range(1, 12))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t + seed), 0.05, 1)
    breath = np.random.default_rng(seed).normal(size=count)
    return (0.12 * tone * syllables + 0.004 * breath).astype(np.float32)


@pytest.fixture(scope="session")
def sound() -> np.ndarray:
    """float32 [2, 64000] at 32 kHz: another voice, at another level, in each channel."""
    return np.stack([voice(140, 1), 0.6 * voice(210, 2)])


@pytest.fixture(scope="session")
def sharp_sound() -> np.ndarray:
    """The same voices with their pitch 3 % up and their timing kept."""
    return np.stack([voice(140, 1, 1.03), 0.6 * voice(210, 2, 1.03)])


def failed(figures) -> set[str]:
    """Names of the figures that did not pass."""
    return {figure.name for figure in figures if not figure.passed}
