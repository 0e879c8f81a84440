"""The 32 kHz resampler against its formula, written out once more tap by tap, and against sines."""

import math

import numpy as np
import pytest

from h3serve.media.read.audio_resampler import resample


def formula(wave: np.ndarray, rate: int, target: int) -> np.ndarray:
    """out(p) = sum over m of x(m)·h(time between them), h a sinc of six zero crossings under a Hann window."""
    cutoff = 0.99 * min(rate, target)
    out = np.zeros(math.ceil(len(wave) * target / rate))
    for p in range(len(out)):
        for m in range(len(wave)):
            crossing = cutoff * (m / rate - p / target)
            if abs(crossing) < 6:
                hann = 0.5 + 0.5 * math.cos(math.pi * crossing / 6)
                out[p] += wave[m] * float(np.sinc(crossing)) * hann * cutoff / rate
    return out


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_every_tap(rate: int) -> None:
    wave = np.random.default_rng(rate).normal(size=(2, 150)).astype(np.float32)
    out = resample(wave, rate)
    assert out.dtype == np.float32 and out.flags.c_contiguous
    for channel in range(2):
        # torchaudio, and so this, rounds the place of an output sample between two inputs to float32
        np.testing.assert_allclose(out[channel], formula(wave[channel], rate, 32_000), atol=5e-5)


@pytest.mark.parametrize("rate", [44_100, 48_000, 11_025, 192_000])
def test_a_single_sample_anywhere(rate: int) -> None:
    """The first and last samples reach as far as any other: nothing wraps around, nothing is cut off."""
    for at in (0, 1, 59, 119):
        wave = np.zeros((1, 120), np.float32)
        wave[0, at] = 1
        np.testing.assert_allclose(resample(wave, rate)[0], formula(wave[0], rate, 32_000), atol=2e-5)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 24_000, 44_056, 44_100, 48_000, 96_000, 192_000])
def test_a_sine_keeps_pitch_phase_and_loudness(rate: int) -> None:
    wave = np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate)[None].astype(np.float32)
    out = resample(wave, rate)[0]
    expected = np.sin(2 * np.pi * 440 * np.arange(len(out)) / 32_000)
    assert np.abs(out - expected)[200:-200].max() < 4e-3


@pytest.mark.parametrize("rate", [44_100, 48_000, 96_000])
def test_what_32_khz_cannot_hold_is_removed(rate: int) -> None:
    wave = np.sin(2 * np.pi * 20_000 * np.arange(rate // 4) / rate)[None].astype(np.float32)
    assert np.abs(resample(wave, rate))[:, 200:-200].max() < 0.02


@pytest.mark.parametrize(("rate", "samples", "length"), [(44_100, 227_850, 165_334), (48_000, 1, 1), (8_000, 3, 12)])
def test_length_is_rounded_up(rate: int, samples: int, length: int) -> None:
    assert resample(np.zeros((2, samples), np.float32), rate).shape == (2, length)


def test_32_khz_is_left_alone() -> None:
    wave = np.random.default_rng(0).normal(size=(2, 77)).astype(np.float32)
    assert resample(wave, 32_000) is wave


def test_odd_rates_stay_small() -> None:
    """44,101 and 32,000 have no common divisor: one phase per output sample of a second, a few taps each."""
    wave = np.ones((2, 44_101), np.float32)
    out = resample(wave, 44_101)
    assert out.shape == (2, 32_000)
    np.testing.assert_allclose(out[:, 100:-100], 1, atol=3e-3)
