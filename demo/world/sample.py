"""Scenes at random, each wholly decided by its seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from demo.world.motion import DIRECTIONS, KINDS, REPEATED, SIDED, STEPS, Motion
from demo.world.names import (
    AMBIENCES,
    BACKGROUNDS,
    COLOURS,
    DETUNE,
    FPS,
    MATERIALS,
    SHAPES,
    SIDES,
    SIZES,
    Size,
)
from demo.world.scene import Scene, Thing

EARLIEST_S, LATEST_S = 0.25, 1.2  # when a motion begins
TAIL_S = 0.35  # after it has ended


def sample_scene(
    seed: int,
    *,
    canvas: Size = (64, 64),
    frames: int = 107,
    motion: str | Motion | None = None,
    thing: Thing | None = None,
    background: str | None = None,
    ambience: str | None = None,
) -> Scene:
    """The scene of `seed`: whatever is not given is drawn, evenly over all names.

    A `Motion` given keeps its kind, direction, side and count and is timed anew for `frames`.
    """
    random = Random(seed)
    wanted = motion if isinstance(motion, Motion) else sample_motion(random, motion, frames / FPS)
    first = sample_thing(random)
    first = thing or _fitting(first, wanted.kind, random)
    things = (first, _other(first, random)) if wanted.kind == "meet" else (first,)
    scene = Scene(
        things=things,
        motion=time_motion(wanted, random, frames / FPS),
        background=random.choice(list(BACKGROUNDS)),
        ambience=random.choice(AMBIENCES),
        canvas=canvas,
        frames=frames,
        seed=seed,
        detune=1 + random.uniform(-DETUNE, DETUNE),
    )
    return replace(scene, background=background or scene.background, ambience=ambience or scene.ambience)


def sample_thing(random: Random) -> Thing:
    """Any thing."""
    return Thing(*(random.choice(list(names)) for names in (SHAPES, COLOURS, SIZES, MATERIALS)))


def sample_motion(random: Random, kind: str | None, seconds: float) -> Motion:
    """A motion that fits into `seconds`, not timed yet."""
    kind = kind or random.choice(KINDS)
    most = REPEATED.get(kind, 1) if seconds > 4 else min(2 - (kind == "orbit"), REPEATED.get(kind, 1))
    return Motion(
        kind,
        direction=random.choice(DIRECTIONS.get(kind, ("",))),
        side=random.choice(list(SIDES)) if kind in SIDED else "",
        count=random.randint(1, most),
    )


def time_motion(motion: Motion, random: Random, seconds: float) -> Motion:
    """The motion with its start, its step and its height drawn anew."""
    shortest, longest = STEPS[motion.kind]
    room = (seconds - EARLIEST_S - TAIL_S) / motion.steps
    step = random.uniform(min(shortest, room), min(longest, room))
    latest = min(LATEST_S, seconds - TAIL_S - step * motion.steps)
    start, y = random.uniform(EARLIEST_S, max(latest, EARLIEST_S)), 0.5
    if motion.kind == "slide":
        y = random.uniform(0.4, 0.6)
    if motion.kind == "blink":  # it appears with a frame
        start, step = round(start * FPS) / FPS, round(step * FPS) / FPS
    return replace(motion, start_s=start, step_s=step, y=y)


def _fitting(thing: Thing, kind: str, random: Random) -> Thing:
    """What grows ends large; large things have no room to meet in on a square canvas."""
    if kind == "meet":
        return replace(thing, size=random.choice(("small", "medium")))
    return replace(thing, size="large") if kind == "grow" else thing


def _other(first: Thing, random: Random) -> Thing:
    """Of the same size and material, in another colour."""
    colour = random.choice([name for name in COLOURS if name != first.colour])
    return replace(first, shape=random.choice(SHAPES), colour=colour)
