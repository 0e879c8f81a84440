"""When a curve passes a level, finer than a frame: what all event times are made of."""

from __future__ import annotations

import numpy as np

from demo.detect.tracks import Floats
from demo.world.names import FPS


def crossings(curve: Floats, level: float) -> tuple[list[float], list[float]]:
    """Seconds at which `curve` (one value a frame) rises above `level`, and at which it sinks below it."""
    above = curve >= level
    turns = np.flatnonzero(above[1:] != above[:-1])
    times = [(i + (level - curve[i]) / (curve[i + 1] - curve[i])) / FPS for i in turns]
    ups = [t for t, i in zip(times, turns, strict=True) if above[i + 1]]
    downs = [t for t, i in zip(times, turns, strict=True) if not above[i + 1]]
    return ups, downs


def peaks(curve: Floats, level: float) -> list[float]:
    """Seconds of the middle of every stay above `level` that begins and ends."""
    ups, downs = crossings(curve, level)
    pairs = [(up, min((down for down in downs if down > up), default=None)) for up in ups]
    return [(up + down) / 2 for up, down in pairs if down is not None]


def arrival(curve: Floats) -> list[float]:
    """When a curve that runs evenly from 0 to 1 reaches 1: where the line through its way there does."""
    underway = np.flatnonzero((curve > 0.3) & (curve < 0.95))
    if len(underway) < 3:
        return crossings(curve, 0.95)[0][-1:]
    slope, start = np.polyfit(underway / FPS, curve[underway], 1)
    return [float((1 - start) / slope)] if slope > 0 else []


def filled(curve: Floats) -> Floats:
    """Gaps (nan) bridged by straight lines."""
    known = np.isfinite(curve)
    return np.interp(np.arange(len(curve)), np.flatnonzero(known), curve[known])


def scaled(curve: Floats) -> Floats:
    """From its start to its end as 0 to 1 (means of three frames at either end)."""
    start, end = curve[:3].mean(), curve[-3:].mean()
    return (curve - start) / (end - start)
