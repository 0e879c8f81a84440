"""A scene: what is seen and heard, exactly, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.world.motion import Motion, Room, path, swell
from demo.world.names import FPS, PICTURE_RADIUS, PITCHES, SIZES, Size, samples_of

RING_S = 0.7  # no note lasts longer


@dataclass(frozen=True)
class Thing:
    """One thing: its size decides its pitch, its material the timbre."""

    shape: str
    colour: str
    size: str
    material: str

    @property
    def radius(self) -> float:
        """In units of the canvas' short edge."""
        return SIZES[self.size]


@dataclass(frozen=True)
class Event:
    """A visible instant with its sound: at `x` (0 left, 1 right), of thing number `thing`."""

    time_s: float
    x: float
    pitch_hz: float
    thing: int


@dataclass(frozen=True)
class State:
    """Things at n times, float64 `[things, n]`: centre in parts of the canvas, radius in short edges, seen or not."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    radius: NDArray[np.float64]
    seen: NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """`frames` pictures at 24 fps on `canvas` (width, height), beginning `offset_s` into the motion."""

    things: tuple[Thing, ...]
    motion: Motion
    background: str
    ambience: str
    canvas: Size
    frames: int
    seed: int
    detune: float = 1.0
    offset_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.frames / FPS

    @property
    def samples(self) -> int:
        """Samples per channel at 32 kHz."""
        return samples_of(self.frames)

    @property
    def notes(self) -> tuple[Event, ...]:
        """Everything heard: the events, and what still rings from before the scene (negative times)."""
        moments = [m - self.offset_s for m in self.motion.event_times]
        heard = [m for m in moments if -RING_S < m < self.seconds]
        x = self.state(np.array(heard)).x
        centre = x.mean(0) if self.motion.kind == "meet" else x[0]
        pitch = PITCHES[self.things[0].size][1] * self.detune
        return tuple(Event(m, float(place), pitch, 0) for m, place in zip(heard, centre, strict=True))

    @property
    def events(self) -> tuple[Event, ...]:
        """Visible instants that sound, in order."""
        return tuple(note for note in self.notes if note.time_s >= 0)

    def state(self, t: NDArray[np.float64]) -> State:
        """Where every thing is at times `t` [n], in seconds from the scene's first frame."""
        short = min(self.canvas)
        width, height = self.canvas[0] / short, self.canvas[1] / short
        late = t + self.offset_s
        paths, radii = [], []
        for index, thing in enumerate(self.things):
            small = SIZES["small"]
            radius = PICTURE_RADIUS if self.motion.kind == "still" else thing.radius
            paths.append(path(self.motion, index, Room(radius, width, height), late))
            grown = swell(self.motion, late)
            radii.append(radius * grown + small * (1 - grown))
        x, y, seen = (np.stack(rows) for rows in zip(*paths, strict=True))
        return State(x, y, np.stack(radii), seen)
