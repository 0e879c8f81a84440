"""How things move: eight kinds, each with the instants at which it sounds.

Times in seconds; x and y as fractions of the canvas; heights and radii in units of its short edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.world.names import SIDES

Times = NDArray[np.float64]

KINDS = ("slide", "bounce", "orbit", "fall", "grow", "blink", "meet")
DIRECTIONS = {"slide": ("left to right", "right to left"), "orbit": ("clockwise", "counter-clockwise")}
SIDED = ("bounce", "fall", "grow", "blink")  # happen on the left, in the middle or on the right
REPEATED = {"bounce": 3, "orbit": 2, "blink": 3}  # most times
STEPS = {  # seconds of one step: shortest, longest
    "slide": (1.0, 2.2),
    "bounce": (0.32, 0.45),
    "orbit": (1.2, 1.7),
    "fall": (0.5, 0.9),
    "grow": (1.0, 2.0),
    "blink": (0.7, 1.0),
    "meet": (0.9, 1.4),
}
LIT = 0.55  # of a step: how long a blinking thing is seen
GAP = 0.03  # of the short edge: between a thing and the edge of the canvas
WIDEST = 1.15  # a triangle reaches so many radii to the side


@dataclass(frozen=True)
class Motion:
    """A kind, what a caption says of it, and when: nothing moves before `start_s`; `step_s` as in `event_times`."""

    kind: str
    direction: str = ""
    side: str = ""
    count: int = 1
    start_s: float = 0.5
    step_s: float = 1.0
    y: float = 0.5  # of slide and meet

    @property
    def steps(self) -> float:
        """Length of the whole motion in steps."""
        return {"bounce": 2 * self.count, "orbit": self.count, "blink": self.count - 1 + LIT, "meet": 2}.get(
            self.kind, 1
        )

    @property
    def event_times(self) -> tuple[float, ...]:
        """When it sounds: arrival, contacts, lowest points, landing, full size, appearances, touch."""
        if self.kind == "still":
            return ()
        first, apart = {"bounce": (1, 2), "orbit": (0.5, 1), "blink": (0, 1)}.get(self.kind, (1, 1))
        return tuple(self.start_s + self.step_s * (first + k * apart) for k in range(self.count))


@dataclass(frozen=True)
class Room:
    """Where the centre of a thing of `radius` may be: its reach as fractions of the canvas' width and height."""

    radius: float
    width: float  # of the canvas, in short edges
    height: float

    @property
    def left(self) -> float:
        return (self.radius * WIDEST + GAP) / self.width

    @property
    def top(self) -> float:
        return (self.radius + GAP) / self.height


def path(motion: Motion, index: int, room: Room, t: Times) -> tuple[Times, Times, Times]:
    """x, y and whether it is seen (0 or 1), of thing `index` at times `t`."""
    phase = np.clip((t - motion.start_s) / motion.step_s, 0, motion.steps)
    seen = np.ones_like(t)
    x = np.full_like(t, SIDES.get(motion.side, 0.5))
    y = np.full_like(t, motion.y)
    if motion.kind == "slide":
        x = room.left + phase * (1 - 2 * room.left)
        x = 1 - x if motion.direction == "right to left" else x
    elif motion.kind in ("bounce", "fall"):
        seconds = 1 - np.abs(phase % 2 - 1) if motion.kind == "bounce" else phase  # of falling: up is down backwards
        y = room.top + seconds**2 * (1 - 2 * room.top)
    elif motion.kind == "orbit":
        angle = 2 * np.pi * phase * (1 if motion.direction == "clockwise" else -1)
        reach = 0.5 - room.radius - GAP
        x = 0.5 + np.sin(angle) * reach / room.width
        y = 0.5 - np.cos(angle) * reach / room.height
    elif motion.kind == "meet":
        apart = np.abs(phase - 1)
        x = touching(room) + apart * (room.left - touching(room))
        x = 1 - x if index else x
    elif motion.kind == "blink":
        late = (t - motion.start_s) / motion.step_s + 1e-6
        seen = ((late >= 0) & ((late % 1 < LIT) | (late >= motion.count - 1))).astype(np.float64)
    return x, y, seen


def touching(room: Room) -> float:
    """x of the left one of two equal things that touch in the middle."""
    return 0.5 - room.radius / room.width


def swell(motion: Motion, t: Times) -> Times:
    """0 before a thing grows, 1 when it has grown; 1 for things that do not."""
    if motion.kind != "grow":
        return np.ones_like(t)
    return np.clip((t - motion.start_s) / motion.step_s, 0, 1)
