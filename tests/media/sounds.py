"""Small sounds in every container, and what to look for in them."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from h3serve.media.sources.media_file import IngestLimits, MediaFile


def tone(rate: int, seconds: float, hertz: float = 440.0, channels: int = 2) -> np.ndarray:
    """float32 [channels, n]."""
    time = np.arange(round(rate * seconds)) / rate
    return np.repeat(0.5 * np.sin(2 * np.pi * hertz * time)[None], channels, axis=0).astype(np.float32)


def click(rate: int, seconds: float, at: float, channels: int = 2) -> np.ndarray:
    """Silence with 2 ms of a 3 kHz wave packet, its centre at `at` seconds."""
    time = np.arange(round(rate * seconds)) / rate - at
    packet = 0.8 * np.cos(2 * np.pi * 3000 * time) * np.exp(-((time / 0.0005) ** 2))
    return np.repeat(packet[None], channels, axis=0).astype(np.float32)


def click_time(wave: np.ndarray, rate: int = 32_000) -> float:
    """Seconds at which the energy of a click is centred; asserts that there is one."""
    power = (wave.astype(np.float64) ** 2).sum(axis=0)
    peak = int(power.argmax())
    assert power[peak] > 0.05, "no click"
    near = np.arange(max(0, peak - 100), min(len(power), peak + 100))
    return float((near * power[near]).sum() / power[near].sum() / rate)


def pitch(wave: np.ndarray, rate: int = 32_000) -> float:
    """Hertz of the strongest partial of [n], to a small fraction of a bin."""
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
    k = int(spectrum.argmax())
    a, b, c = np.log(spectrum[k - 1 : k + 2])
    return float((k + (a - c) / (2 * (a - 2 * b + c))) * rate / len(wave))


def record(
    path: Path, wave: np.ndarray, rate: int, codec: str = "pcm_f32le", *, layout: str = "", starts: list | None = None
) -> Path:
    """A file of `wave`, float32 [channels, n]; `starts` places chunks of 0.1 s at these seconds."""
    layout = layout or {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[len(wave)]
    with av.open(str(path), "w") as box:
        stream = box.add_stream(codec, rate=rate, layout=layout)
        chunk = rate // 10 if starts else wave.shape[1]
        fifo = av.AudioResampler(stream.codec_context.format.name, layout, rate)
        for number, first in enumerate(range(0, wave.shape[1], chunk)):
            packed = np.ascontiguousarray(wave[:, first : first + chunk].T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(packed, "flt", layout)
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = round(starts[number] * rate) if starts else first
            for part in fifo.resample(frame):
                box.mux(stream.encode(part))
        box.mux(stream.encode(None))
    return path


def medium(path: Path, **limits: int) -> MediaFile:
    return MediaFile(path, "conditions[0].uri", path.name, IngestLimits(**limits))
