"""Faults of a sound that need no ground truth: silence, clipping, drift, a file without sound."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

from h3serve.guard.audio_metrics import level_dbfs
from h3serve.guard.metric import Figure, at_least, at_most
from h3serve.guard.pcm import Wave
from h3serve.guard.thresholds import AudioLimits

CLIPPED = 0.999  # of full scale
CLIPPED_RUN = 3  # samples in a row: a single peak at full scale is not clipping


def clipped_share(sound: Wave) -> float:
    """Share of samples [channels, n] in runs of three or more at or beyond full scale."""
    loud = np.pad(np.abs(sound) >= CLIPPED, ((0, 0), (1, 1))).astype(np.int8)
    edges = np.diff(loud, axis=1)
    runs = np.argwhere(edges == -1)[:, 1] - np.argwhere(edges == 1)[:, 1]
    return float(runs[runs >= CLIPPED_RUN].sum() / sound.size) if sound.size else 0.0


def check_audio(sound: Wave, rate: int, video_seconds: float, *, limits: AudioLimits) -> list[Figure]:
    """Figures of float32 [channels, n] at its own `rate`, beside a video of `video_seconds`."""
    finite = bool(np.isfinite(sound).all())
    drift = abs(sound.shape[-1] / rate - video_seconds)
    return [
        at_least("level", level_dbfs(sound) if finite else None, limits.level_dbfs, unit=" dBFS"),
        at_most("clipped share", clipped_share(sound) if finite else None, limits.clipped_share),
        at_most("audio/video drift", drift, limits.drift_s, unit=" s"),
    ]


def check_container(path: Path, *, limits: AudioLimits) -> list[Figure]:
    """Figures of a written file: an audio stream with rate, channels and duration, and its drift."""
    try:
        with av.open(str(path)) as container:
            figures = [at_least("audio streams", len(container.streams.audio), 1)]
            return figures + (_stream_figures(container, limits) if figures[0].passed else [])
    except av.FFmpegError:
        return [at_least("audio streams", None, 1, where="the file cannot be opened")]


def _stream_figures(container: av.container.InputContainer, limits: AudioLimits) -> list[Figure]:
    audio = container.streams.audio[0]
    seconds = _seconds(audio)
    pictures = _seconds(container.streams.video[0]) if container.streams.video else None
    drift = None if pictures is None or seconds is None else abs(seconds - pictures)
    return [
        at_least("container rate", audio.rate or 0, 1, unit=" Hz"),
        at_least("container channels", audio.channels or 0, 1),
        at_least("container audio duration", seconds, 0.001, unit=" s"),
        at_most("container drift", drift, limits.drift_s, unit=" s"),
    ]


def _seconds(stream: av.stream.Stream) -> float | None:
    if stream.duration is None or stream.time_base is None:
        return None
    return float(stream.duration * stream.time_base)
