"""Sound agreement: a sound against its ground truth, both float32 [channels, n] at 16 kHz."""

from __future__ import annotations

from typing import Any

import numpy as np

from h3serve.guard.metric import Figure, at_least, at_most
from h3serve.guard.pcm import RATE, Wave
from h3serve.guard.thresholds import AudioLimits

LAG_REACH = int(0.050 * RATE)  # samples either way in which the waveforms may be aligned
SILENT_DBFS = -80.0  # two channels below this agree, whatever their waveforms
FLOOR_DBFS = -120.0  # level of digital silence, so that differences stay finite
WINDOW, HOP = 1024, 256
SPECTRUM_DEPTH_DB = 60.0  # bins this far under the truth's loudest count as empty


def level_dbfs(wave: Wave) -> float:
    """Root mean square in dB of full scale, -120 for digital silence."""
    rms = float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) if wave.size else 0.0
    return max(FLOOR_DBFS, 20 * float(np.log10(rms))) if rms > 0 else FLOOR_DBFS


def best_lag(truth: Wave, sound: Wave) -> int:
    """Samples by which mono `sound` lags `truth`, where they fit best, at most 50 ms either way."""
    lags = np.arange(-LAG_REACH, LAG_REACH + 1)
    size = 1 << int(np.ceil(np.log2(len(truth) + len(sound) + 1)))
    spectrum = np.conj(np.fft.rfft(truth, size)) * np.fft.rfft(sound, size)
    products = np.fft.irfft(spectrum, size)[lags]
    fits = np.round(products / (np.abs(products).max() or 1), 9)  # ties go to the smallest lag
    return int(min(lags[fits == fits.max()], key=abs))


def overlap(truth: Wave, sound: Wave, lag: int) -> tuple[Wave, Wave]:
    """The parts [..., m] that lie over each other once `sound` is moved back by `lag` samples."""
    sound = sound[..., max(lag, 0) :]
    truth = truth[..., max(-lag, 0) :]
    shared = min(truth.shape[-1], sound.shape[-1])
    return truth[..., :shared], sound[..., :shared]


def correlation(truth: Wave, sound: Wave) -> float:
    """Normalized product of two aligned waveforms, in [-1, 1]; 1 when both are silent."""
    silent = [level_dbfs(wave) < SILENT_DBFS for wave in (truth, sound)]
    if any(silent):
        return 1.0 if all(silent) else 0.0
    a, b = truth.astype(np.float64), sound.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def spectrogram_db(wave: Wave) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Power in dB [bins, windows] of a mono waveform: 1024-sample Hann windows, hop 256."""
    padded = np.pad(wave.astype(np.float64), (0, max(0, WINDOW - len(wave))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW + 1)[:-1])) ** 2
    return np.asarray(10 * np.log10(power.T + 1e-12))


def spectral_similarity(truth: Wave, sound: Wave) -> float:
    """Cosine of two mono log spectrograms, both in dB above 60 dB under the truth's loudest bin."""
    a, b = spectrogram_db(truth), spectrogram_db(sound)
    floor = a.max() - SPECTRUM_DEPTH_DB
    a, b = np.maximum(a - floor, 0), np.maximum(b - floor, 0)
    norm = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / norm) if norm else 0.0


def compare_audio(truth: Wave, sound: Wave, *, limits: AudioLimits) -> list[Figure]:
    """Figures of `sound` against `truth`, of the mono mix and then per channel.

    Channels are aligned by the mono mix's lag, so that a delay between channels shows.
    """
    count = at_most("channel count difference", abs(len(sound) - len(truth)), 0)
    if not count.passed or not truth.size or not sound.size:
        return [count, at_least("waveform correlation", None, limits.waveform_correlation)]
    mono = truth.mean(axis=0), sound.mean(axis=0)
    lag = best_lag(*mono)
    level = abs(level_dbfs(mono[1]) - level_dbfs(mono[0]))
    seconds = abs(sound.shape[1] - truth.shape[1]) / RATE
    aligned = overlap(*mono, lag)
    return [
        count,
        at_least("spectral similarity", spectral_similarity(*aligned), limits.spectral_similarity),
        at_least("waveform correlation", correlation(*aligned), limits.waveform_correlation),
        at_most("RMS difference", level, limits.rms_difference_db, unit=" dB"),
        at_most("duration difference", seconds, limits.duration_difference_s, unit=" s"),
        *_channel_figures(*overlap(truth, sound, lag), limits),
    ]


def _channel_figures(truth: Wave, sound: Wave, limits: AudioLimits) -> list[Figure]:
    fits = [correlation(a, b) for a, b in zip(truth, sound, strict=True)]
    before, after = ([level_dbfs(channel) for channel in wave] for wave in (truth, sound))
    changes = [abs(b - a) for a, b in zip(before, after, strict=True)]
    tilt = abs((after[0] - after[-1]) - (before[0] - before[-1]))
    names = ["left", "right"] if len(truth) == 2 else [f"channel {i}" for i in range(len(truth))]
    worst, loudest = int(np.argmin(fits)), int(np.argmax(changes))
    return [
        at_least("channel correlation", fits[worst], limits.channel_correlation, where=names[worst]),
        at_most(
            "channel RMS difference",
            changes[loudest],
            limits.channel_rms_difference_db,
            unit=" dB",
            where=names[loudest],
        ),
        at_most("balance difference", tilt, limits.balance_difference_db, unit=" dB"),
    ]
