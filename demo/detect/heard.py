"""Everything that is heard in a clip, from its samples: notes with pitch, timbre and place, and the ambience."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from demo.world.names import PITCHES, SAMPLE_RATE, SIZES

Wave = NDArray[np.float32]
Floats = NDArray[np.float64]

HOP = SAMPLE_RATE // 200  # 5 ms
WINDOW = 2 * HOP
HIGH_PASS_HZ = 150.0  # the hum lies below, every pitch above
RISE_DB, LOOK_BACK = 9.0, 12  # an onset rises so much within so many hops
LOUD_DBFS = -26.0  # what is quieter is no note
APART_S = 0.25  # between two onsets
QUIET_DBFS = -47.0  # an ambience below this is none
BRIEF_DB, SHORT_DB = -12.0, -17.0  # a knock has died away after 60 ms, a beep after 150 ms
LASTS_DB = -4.0  # a tone is as loud after 150 ms


@dataclass(frozen=True)
class Note:
    """One onset: seconds, the pitch in Hz and its class, the timbre class, x from the two channels' levels."""

    time_s: float
    pitch_hz: float
    pitch: str
    material: str
    x: float


@dataclass(frozen=True)
class Heard:
    """Notes in order, and the ambience."""

    notes: tuple[Note, ...]
    ambience: str


def hear(wave: Wave) -> Heard:
    """What float32 [2,n] at 32 kHz holds."""
    low, high = _split(wave)
    notes = tuple(_note(high, onset) for onset in onsets(high))
    return Heard(notes, _ambience(low, high))


def onsets(high: Floats) -> list[int]:
    """Samples at which notes begin: steep rises of the level."""
    level = _level(high)
    padded = np.concatenate([np.full(LOOK_BACK, level[0]), level[:-1]])  # what rings at the start began before
    rise = level - np.lib.stride_tricks.sliding_window_view(padded, LOOK_BACK).min(1)
    found: list[int] = []
    for hop in np.flatnonzero((rise > RISE_DB) & (level > LOUD_DBFS)):
        if found and (hop * HOP - found[-1]) < APART_S * SAMPLE_RATE:
            continue
        found.append(_begin(high, hop))
    return found


def _begin(high: Floats, hop: int) -> int:
    """The sample, around a hop, that first passes a quarter of the note's loudest one."""
    start = max(0, (hop - 3) * HOP)
    part = np.abs(high[:, start : start + 10 * HOP]).max(0)
    return start + int(np.argmax(part > 0.25 * part.max()))


def _note(high: Floats, onset: int) -> Note:
    left, right = (np.sqrt(np.square(c[onset : onset + 12 * HOP]).mean()) for c in high)
    pitch_hz = _pitch(high[:, onset : onset + 24 * HOP].sum(0))
    names = {size: PITCHES[size] for size in SIZES}
    size = min(names, key=lambda s: abs(np.log(pitch_hz / names[s][1])))
    place = float(np.arctan2(right, left) / (np.pi / 2))
    return Note(onset / SAMPLE_RATE, pitch_hz, names[size][0], _material(high[:, onset:]), place)


def _pitch(mono: Floats) -> float:
    """The strongest frequency between 170 and 1100 Hz: in every timbre that is the first partial."""
    spectrum = np.abs(np.fft.rfft(mono * np.hanning(2 * len(mono))[len(mono) :], 1 << 15))
    f = np.fft.rfftfreq(1 << 15, 1 / SAMPLE_RATE)
    inside = (f > 170) & (f < 1100)
    return float(f[inside][np.argmax(spectrum[inside])])


def _material(note: Floats) -> str:
    """By how a note fades: a knock at once, a beep all at once a little later, a chime slowly; a tone lasts."""
    after = {ms: _rms_db(note[:, int(ms * 32) : int((ms + 25) * 32)]) for ms in (5, 60, 150)}
    if after[60] - after[5] < BRIEF_DB:
        return "wooden"
    if after[150] - after[5] > LASTS_DB:
        return "glass"
    return "plastic" if after[150] - after[5] < SHORT_DB else "metal"


def _ambience(low: Floats, high: Floats) -> str:
    """From the quietest quarter of the clip, in which no note rings."""
    size = 10 * HOP
    count = low.shape[1] // size
    powers = [np.square(band[:, : count * size]).reshape(2, count, size).mean((0, 2)) for band in (low, high)]
    quiet = np.argsort(powers[0] + powers[1])[: max(4, count // 4)]
    below, above = (10 * np.log10(power[quiet].mean() + 1e-12) for power in powers)
    if max(below, above) < QUIET_DBFS:
        return "none"
    return "hum" if below > above else "wind"


def _split(wave: Wave) -> tuple[Floats, Floats]:
    """The sound below and above HIGH_PASS_HZ."""
    sos = signal.butter(4, HIGH_PASS_HZ, "high", fs=SAMPLE_RATE, output="sos")
    high = np.asarray(signal.sosfiltfilt(sos, wave.astype(np.float64)))
    return wave - high, high


def _level(high: Floats) -> Floats:
    """dB of full scale of both channels together, one value a hop."""
    power = np.square(high).sum(0)
    total = np.concatenate([[0.0], np.cumsum(power)])
    starts = np.arange(0, len(power) - WINDOW, HOP)
    return np.asarray(10 * np.log10((total[starts + WINDOW] - total[starts]) / WINDOW + 1e-9))


def _rms_db(part: Floats) -> float:
    return float(10 * np.log10(np.square(part).sum(0).mean() + 1e-9)) if part.size else -90.0
