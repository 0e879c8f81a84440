"""Sound to the model's 32 kHz: band-limited interpolation as torchaudio's `Resample` does it by default.

The model was trained on sound that came through that filter, so it is kept, taps and all: a sinc under a
Hann window of six zero crossings on each side, cut off at 0.99 of the lower Nyquist rate.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from h3serve.core.geometry import SAMPLE_RATE

Wave = npt.NDArray[np.float32]

ZERO_CROSSINGS = 6
ROLLOFF = 0.99


def resample(wave: Wave, rate: int, target: int = SAMPLE_RATE) -> Wave:
    """float32 [channels, n] at `rate` Hz -> float32 [channels, ceil(n·target/rate)] at `target` Hz.

    Sound is taken as silent outside the array; at `target` already, the array itself comes back.
    Source: spec/vae_audio.md 6.6.
    """
    if rate == target:
        return wave
    divisor = math.gcd(rate, target)
    step, phases = rate // divisor, target // divisor  # every `step` samples in become `phases` out
    first, kernels = _kernels(step, phases)
    taps = kernels.shape[1]
    length = -(-wave.shape[1] * target // rate)
    blocks = -(-length // phases)
    before = -int(first[0])  # taps that reach back beyond the first sample
    after = max(0, (blocks - 1) * step + int(first[-1]) + taps - wave.shape[1])
    padded = np.pad(wave, ((0, 0), (before, after)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=1)
    out = np.empty((wave.shape[0], blocks, phases), np.float32)
    for phase, kernel in enumerate(kernels):
        begin = before + int(first[phase])
        out[:, :, phase] = windows[:, begin : begin + (blocks - 1) * step + 1 : step] @ kernel
    return np.ascontiguousarray(out.reshape(wave.shape[0], -1)[:, :length])


def _kernels(step: int, phases: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """For each phase, the offset of its first tap [phases] and its taps [phases, taps].

    Phase i lies at i/phases of a block of `step` samples; the sample at offset m lies at m/step.
    """
    cutoff = min(step, phases) * ROLLOFF  # zero crossings per block
    reach = ZERO_CROSSINGS * step / cutoff  # in samples
    phase = np.arange(phases)
    first = np.ceil(phase * step / phases - reach).astype(np.int64)
    offsets = first[:, None] + np.arange(math.floor(2 * reach) + 1)
    place = (phase / phases).astype(np.float32).astype(np.float64)  # torchaudio's rounding: 1e-5 of the result
    crossing = cutoff * (offsets / step - place[:, None])
    window = np.cos(np.clip(crossing / ZERO_CROSSINGS, -1, 1) * math.pi / 2) ** 2
    return first, (np.sinc(crossing) * window * cutoff / step).astype(np.float32)
