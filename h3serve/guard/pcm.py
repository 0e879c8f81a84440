"""The form in which sound is compared and stored: float32 [channels, n] at 16 kHz."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import av
import numpy as np

from h3serve.core.errors import MediaError

RATE = 16_000
Wave = np.ndarray[Any, np.dtype[np.float32]]


def to_pcm(sound: Wave, rate: int) -> Wave:
    """Float32 [channels, n] at `rate` Hz, clipped to [-1, 1] and resampled to 16 kHz."""
    channels = len(sound)
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(np.clip(sound, -1, 1), dtype=np.float32),
        format="fltp",
        layout=_layout(channels),
    )
    frame.sample_rate = rate
    return _resample([frame], channels)


def read_pcm(path: Path) -> Wave:
    """First audio stream of any media file as float32 [channels, n] at 16 kHz."""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.audio[0]
            return _resample(container.decode(stream), stream.channels)
    except (av.FFmpegError, IndexError, OSError) as error:
        raise MediaError("sound", str(path), f"it has no readable audio stream: {error}") from None


def write_wav(path: Path, pcm: Wave) -> None:
    """16-bit WAV of float32 [channels, n] at 16 kHz."""
    samples = np.clip(np.round(pcm * 32768), -32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(pcm))
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.T.tobytes())


def _layout(channels: int) -> str:
    return {1: "mono", 2: "stereo"}.get(channels, f"{channels}c")


def _resample(frames: Any, channels: int) -> Wave:
    resampler = av.AudioResampler(format="fltp", layout=_layout(channels), rate=RATE)
    pieces = [out.to_ndarray() for frame in [*frames, None] for out in resampler.resample(frame)]
    empty = np.zeros((channels, 0), np.float32)
    return np.concatenate([empty, *pieces], axis=1)
