"""Tracks to motions: the kind, its direction, side, and the times of its visible events."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from demo.detect.crossings import arrival, crossings, filled, peaks, scaled
from demo.detect.tracks import Floats, Masks, Track
from demo.world.names import FPS, SIDES

MOVES = 0.08  # short edges: less is standing still
GROWS = 1.4  # times its radius
WANDERS = 0.2  # a thing that blinks comes back nearer than that
BLINK_FRAMES = 3  # a shorter absence or presence is a flicker
CONTACT = 0.65  # of the way down: a bouncing thing below it is about to touch


@dataclass(frozen=True)
class Move:
    """What moved how: `kind` as in the world or `still`; event times in seconds, with the x of each."""

    kind: str
    direction: str = ""
    side: str = ""
    times: tuple[float, ...] = ()
    x: tuple[float, ...] = ()


def classify(tracks: list[Track], radius: Floats) -> Move:
    """The motion of one or two things; `radius` is the first one's, in short edges."""
    if len(tracks) == 2:
        return _meet(*tracks)
    track = tracks[0]
    x, y, radius = filled(track.x), filled(track.y), filled(radius)
    height, width = track.cover.shape[1:]
    across, down = np.ptp(x) * width / min(height, width), np.ptp(y) * height / min(height, width)
    seen = _steady(track.seen)
    if (~seen).sum() >= BLINK_FRAMES and max(across, down) < WANDERS:  # a fast thing may be lost for a while
        return _sided("blink", track, _appearances(seen))
    if radius[-5:].mean() / radius[:5].mean() > GROWS and max(across, down) < MOVES:
        return _sided("grow", track, arrival(scaled(radius)))
    if across > MOVES and down > MOVES:
        return _orbit(x * width, y * height, x)
    if across > MOVES:
        direction = "left to right" if x[-3:].mean() > x[:3].mean() else "right to left"
        return _with_places("slide", x, arrival(scaled(x)), direction)
    if down > MOVES:
        return _drop(track, y)
    return Move("still", side=_side(track))


def _drop(track: Track, y: Floats) -> Move:
    """Ends on the floor: it fell. Ends at the top: it bounced."""
    low, high = y.min(), y.max()
    if y[-3:].mean() > (low + high) / 2:
        return _sided("fall", track, arrival(np.sqrt(scaled(y).clip(0))))
    return _sided("bounce", track, peaks((y - low) / (high - low), CONTACT))


def _orbit(x: Floats, y: Floats, place: Floats) -> Move:
    """By the angle around the middle of all places, 0 at the top, clockwise positive."""
    across, down = x - (x.max() + x.min()) / 2, y - (y.max() + y.min()) / 2
    angle = np.unwrap(np.arctan2(across, -down))
    clockwise = angle[-1] > angle[0]
    turned = angle if clockwise else -angle
    times = [
        t
        for lap in range(-2, 12)
        for t in crossings(turned, np.pi + 2 * np.pi * lap)[0][:1]
        if turned.min() < np.pi + 2 * np.pi * lap < turned.max()
    ]
    return _with_places("orbit", place, sorted(times), "clockwise" if clockwise else "counter-clockwise")


def _meet(left: Track, right: Track) -> Move:
    gap = filled(right.x) - filled(left.x)
    nearest, start, end = gap.min(), gap[:3].mean(), gap[-3:].mean()
    middle = (filled(right.x) + filled(left.x)) / 2
    apart = min(start, end) - nearest
    if apart * max(left.cover.shape[2] / left.cover.shape[1], 1) < MOVES:
        return Move("still")
    closeness = (start - gap) / (start - nearest)
    return _with_places("meet", middle, peaks(closeness, 1 - 0.5 * apart / (start - nearest)))


def _sided(kind: str, track: Track, times: list[float]) -> Move:
    move = _with_places(kind, filled(track.x), times)
    return Move(kind, "", _side(track), move.times, move.x)


def _with_places(kind: str, x: Floats, times: list[float], direction: str = "") -> Move:
    places = np.interp(times, np.arange(len(x)) / FPS, x)
    return Move(kind, direction, "", tuple(map(float, times)), tuple(map(float, places)))


def _side(track: Track) -> str:
    x = float(np.nanmedian(track.x))
    return min(SIDES, key=lambda side: abs(SIDES[side] - x))


def _steady(seen: Masks) -> Masks:
    """Without stays and absences of less than BLINK_FRAMES frames."""
    seen = seen.copy()
    edges = [0, *np.flatnonzero(seen[1:] != seen[:-1]) + 1, len(seen)]
    for start, end in pairwise(edges):
        if end - start < BLINK_FRAMES and start and end < len(seen):
            seen[start:end] = ~seen[start:end]
    return seen


def _appearances(seen: Masks) -> list[float]:
    return [(i + 1) / FPS for i in np.flatnonzero(seen[1:] & ~seen[:-1])]
