"""About what a small VAE does to a clip: blur, noise and blocks at 30 dB; a hiss and a dull top in the sound."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage, signal

from h3serve.core.geometry import SAMPLE_RATE

JPEG_QUALITY = 60
HISS = 10 ** (-55 / 20)


def degrade_video(video: NDArray[np.uint8], seed: int = 0, noise: float = 4.0) -> NDArray[np.uint8]:
    """uint8 [F,H,W,3] blurred by 0.7 pixels, through JPEG, with `noise` levels of noise."""
    random = np.random.default_rng(seed)
    soft = ndimage.gaussian_filter(video.astype(np.float32), (0.5, 0.7, 0.7, 0))
    coded = np.stack([_jpeg(frame.clip(0, 255).astype(np.uint8)) for frame in soft])
    return (coded + random.normal(0, noise, coded.shape)).clip(0, 255).astype(np.uint8)


def degrade_audio(wave: NDArray[np.float32], seed: int = 0) -> NDArray[np.float32]:
    """float32 [2,n] without what is above 5 kHz, with white noise at -55 dB and 5 % of the other channel."""
    random = np.random.default_rng(seed)
    dull = signal.sosfiltfilt(signal.butter(3, 5000, fs=SAMPLE_RATE, output="sos"), wave)
    mixed = 0.95 * dull + 0.05 * dull[::-1]
    return (mixed + random.normal(0, HISS, wave.shape)).astype(np.float32)


def _jpeg(frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "jpeg", quality=JPEG_QUALITY)
    return np.asarray(Image.open(file), np.float32)
