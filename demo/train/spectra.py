"""How far two sounds are apart, as magnitudes of short-time spectra at several resolutions."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional as F

WINDOWS = (128, 512, 2048)
FLOOR = 3e-4  # -70 dB of a full-scale sine: what lies under it counts as silence
LIKENESS_WINDOW, LIKENESS_DEPTH_DB = 2048, 60.0
QUIET = 3e-4  # mean magnitude under which errors are no longer weighed up


def spectral_loss(truth: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
    """Mean over resolutions of two distances of float32 [B, n]: of magnitudes, relative to the sound's own, so that
    a short event in long silence counts; and of their logarithms, so that what is quiet, and silence, count.

    Both are squares at heart: what is not known yet is then guessed as its mean. Of absolute differences it would
    be the median, and most of a spectrum is silence.
    """
    return sum(_at(truth, sound, size) for size in WINDOWS) / len(WINDOWS)


def _at(truth: torch.Tensor, sound: torch.Tensor, size: int) -> torch.Tensor:
    a, b = magnitudes(truth, size), magnitudes(sound, size)
    linear = ((a - b).square().mean((1, 2)) + 1e-10).sqrt() / (a.square().mean((1, 2)) + QUIET**2).sqrt()
    apart = (a + FLOOR).log() - (b + FLOOR).log()
    return linear.mean() + apart.abs().mean() + 0.2 * apart.square().mean()


def likeness(truth: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
    """Guard's spectral similarity of float32 [B, n] at 32 kHz, [B]: cosine of spectrograms in dB above -60 dB of
    the truth's loudest bin. Its windows at 16 kHz are these; what lies above 8 kHz does not count there.
    """
    bins = LIKENESS_WINDOW // 4 + 1
    a, b = (20 * magnitudes(wave, LIKENESS_WINDOW)[:, :bins].flatten(1).log10() for wave in (truth, sound))
    floor = a.amax(1, keepdim=True) - LIKENESS_DEPTH_DB
    return F.cosine_similarity((a - floor).relu(), (b - floor).relu())


def magnitudes(wave: torch.Tensor, size: int) -> torch.Tensor:
    """[B, size/2+1, windows], 1 for a full-scale sine; Hann windows that overlap by three quarters."""
    window = _window(size, wave.device)
    spectrum = torch.stft(wave, size, size // 4, window=window, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    return (power + 1e-12).sqrt() * (2.0 / window.sum())  # the root has a slope at nought


@lru_cache(maxsize=16)
def _window(size: int, device: torch.device) -> torch.Tensor:
    return torch.hann_window(size, device=device)
