"""Sound of scenes: a note for every event, panned to where it happens, over a quiet ambience."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import pi

import numpy as np
import torch
from torch import Tensor

from demo.world.names import SAMPLE_RATE
from demo.world.scene import RING_S, Scene

LEVEL = 0.5  # of a note
# Per material: (multiple of the pitch, share, seconds in which it decays by 1/e) of each partial; seconds it lasts.
PARTIALS = {
    "wooden": (((1.0, 0.75, 0.020), (2.6, 0.25, 0.010), (4.4, 0.1, 0.005)), RING_S),
    "metal": (((1.0, 0.55, 0.160), (2.76, 0.3, 0.110), (5.4, 0.15, 0.070)), RING_S),
    "glass": (((1.0, 0.6, 9.0), (2.0, 0.3, 9.0), (4.0, 0.12, 9.0)), 0.35),
    "plastic": (((1.0, 0.75, 9.0), (3.0, 0.25, 9.0), (5.0, 0.12, 9.0)), 0.12),
}
ATTACK_S, RELEASE_S = 0.002, 0.010
WIND_RMS, HUM_RMS = 0.013, 0.016  # -38 and -36 dB of full scale
HUM_HZ = 60.0
_POOL = 1 << 20  # samples of wind that all scenes take theirs from


def synthesize(scenes: Sequence[Scene], device: torch.device | str = "cpu") -> Tensor:
    """float32 [B, 2, n] at 32 kHz on `device`, of scenes of one length; never above 0.9."""
    assert all(scene.frames == scenes[0].frames for scene in scenes)
    samples, ring = scenes[0].samples, round(RING_S * SAMPLE_RATE)
    notes = torch.from_numpy(_notes(scenes)).to(device, non_blocking=True)  # [B,N,columns]
    start = torch.floor(notes[..., 0:1] * SAMPLE_RATE)
    within = torch.arange(ring, device=device, dtype=torch.float64)
    tone = _tone(notes, (start + within) / SAMPLE_RATE - notes[..., 0:1])
    angle = notes[..., 1] * (pi / 2)
    places = (start.long() + ring + within.long()).flatten(1)  # a note may begin before the scene
    channels = []
    for gain in (torch.cos(angle), torch.sin(angle)):
        line = torch.zeros(len(scenes), samples + 2 * ring, device=device)
        line.scatter_add_(1, places, (tone * gain[..., None].float()).flatten(1))
        channels.append(line[:, ring : ring + samples])
    return (torch.stack(channels, 1) + _ambience(scenes, device)).clamp_(-0.9, 0.9)


def _notes(scenes: Sequence[Scene]) -> np.ndarray:
    """Float64 [B, N, 13]: time, x, pitch, seconds it lasts, then multiple, share and decay of three partials."""
    most = max(1, *(len(scene.notes) for scene in scenes))
    table = np.zeros((len(scenes), most, 13))
    table[..., 6::3] = table[..., 3] = 1.0  # missing notes: silent, and no division by nought
    for number, scene in enumerate(scenes):
        partials, seconds = PARTIALS[scene.things[0].material]
        for index, note in enumerate(scene.notes):
            table[number, index] = (note.time_s, note.x, note.pitch_hz, seconds, *np.ravel(partials))
    return table


def _tone(notes: Tensor, since: Tensor) -> Tensor:
    """float32 [B, N, ring]: every note, `since` seconds [B, N, ring] after its instant."""
    wave = torch.zeros(since.shape, device=since.device)
    rises = (since / ATTACK_S).clamp(0, 1) * ((notes[..., 3:4] - since) / RELEASE_S).clamp(0, 1)
    for first in (4, 7, 10):
        multiple, share, decay = (notes[..., first + k : first + k + 1] for k in range(3))
        turns = notes[..., 2:3] * multiple * since
        wave += (share * LEVEL * torch.exp(-since / decay)).float() * torch.sin(2 * pi * (turns % 1)).float()
    return wave * rises.float()


def _ambience(scenes: Sequence[Scene], device: torch.device | str) -> Tensor:
    """float32 [B, 2, n]."""
    samples = scenes[0].samples
    seeds = torch.tensor([[scene.seed % 7919, scene.seed % 6007 + 8000] for scene in scenes])  # two places in the pool
    wind, hum = (
        torch.tensor([float(scene.ambience == name) for scene in scenes]).to(device)[:, None, None]
        for name in ("wind", "hum")
    )
    start = (seeds * 67).to(device)[..., None]
    t = torch.arange(samples, device=device)
    blown = _wind(torch.device(device))[(start + t) % _POOL]
    seconds = (t.double() + start % 533) / SAMPLE_RATE  # its phase differs from scene to scene
    hummed = torch.sin(2 * pi * HUM_HZ * seconds) + 0.4 * torch.sin(4 * pi * HUM_HZ * seconds)
    return wind * blown + hum * (HUM_RMS / 0.76) * hummed.float()


@lru_cache(maxsize=8)
def _wind(device: torch.device) -> Tensor:
    """Noise between 200 and 400 Hz that swells and sinks, float32 [2**20], the same on every device.

    No wider: 32 numbers a fortieth of a second cannot follow more than 640 Hz of noise.
    """
    noise = np.random.default_rng(1).standard_normal(_POOL)
    f = np.fft.rfftfreq(_POOL, 1 / SAMPLE_RATE)
    shaped = np.fft.irfft(np.fft.rfft(noise) / (1 + (f / 400) ** 8) * (f**8 / (f**8 + 200**8)), _POOL)
    swell = 1 + 0.3 * np.sin(2 * np.pi * 13 * np.arange(_POOL) / _POOL)
    wave = shaped * swell
    return torch.from_numpy(wave * (WIND_RMS / wave.std())).float().to(device)
