"""Which examples are asked for: named rows, each with its kinds of task, canvases and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from demo.world import Example, make_example
from demo.world.names import canvas_of, frames_of
from demo.world.new_things import asking_for

FIRST_SEED = 10_000_000  # training takes its own from 2**33 on
SECONDS = 4
SMALL = (("1:1", 64), ("4:3", 64), ("1:1", 64), ("3:4", 64))  # 64x64, 96x64, 64x96
LARGE = (("4:3", 96), ("3:4", 96), ("16:9", 96), ("1:1", 128))
_UNSAID = 9  # seeds that end so have captions that leave things out


@dataclass(frozen=True)
class Row:
    """Examples of `kinds` in turn; `steps` evaluations, or as many as the settings say."""

    kinds: tuple[str, ...]
    steps: int | None = None
    canvases: tuple[tuple[str, int], ...] = SMALL
    new: tuple[str, ...] = ()  # what the prompts ask for that only adapters know


@dataclass(frozen=True)
class Case:
    """One example with the ratio and short edge that a request for its canvas names."""

    example: Example
    seed: int
    ratio: str
    short_edge: int


ROWS = {
    "t2va": Row(("t2va",)),
    "fl2va": Row(("first", "last", "both")),
    "picture": Row(("picture",)),
    "picture_sound": Row(("picture_sound",)),
    "motion": Row(("motion",)),
    "continue": Row(("continue",)),
    "steps8": Row(("t2va",), steps=8),
    "steps50": Row(("t2va",), steps=50),
    "large": Row(("t2va",), canvases=LARGE),
    "teal": Row(("t2va",), new=("teal",)),
    "glass": Row(("t2va",), new=("glass",)),
    "teal_glass": Row(("t2va",), new=("teal", "glass")),
    "vae": Row(("t2va",)),  # the scene itself, through both VAEs
}


def cases(row: Row, count: int) -> Iterator[Case]:
    """`count` examples, always the same ones."""
    seeds = [s for s in range(FIRST_SEED, FIRST_SEED + 2 * count + 9) if s % 10 != _UNSAID][:count]
    for number, seed in enumerate(seeds):
        ratio, edge = row.canvases[number % len(row.canvases)]
        kind = row.kinds[number % len(row.kinds)]
        example = make_example(seed, kind, canvas_of(ratio, edge), frames_of(SECONDS))
        yield Case(asking_for(example, row.new) if row.new else example, seed, ratio, edge)
