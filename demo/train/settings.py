"""The command line of `demo.train.stage`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from h3serve.core.geometry import Size
from h3serve.weights.demo.demo_trained import TRAINED


@dataclass(frozen=True)
class Settings:
    """What is asked for on the command line."""

    stage: int
    seconds: float
    until: float
    limit_s: float
    data_seconds: float
    part: int | None
    gpus: int
    rows: int
    rate: float
    weights: Path
    state: Path
    start: Path | None
    out: Path
    seed: int
    clips: int
    canvases: tuple[Size, ...]
    lengths: tuple[int, ...]
    profile: bool
    graph: bool


def read_arguments(description: str | None, words: list[str] | None = None) -> Settings:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=(1, 2), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training, beside start-up and data, or 0")
    parser.add_argument("--until", type=float, default=1.0, help="part of the stage that is done at the end of this")
    parser.add_argument("--limit-s", type=float, default=1e9, help="of everything: training ends in time for it")
    parser.add_argument("--data-seconds", type=float, default=0, help="of making (more) data; alone with --seconds 0")
    parser.add_argument("--part", type=int, help="number of these data, if several commands make some at once")
    parser.add_argument("--gpus", type=int, default=1, help="ranks; processes on a CPU")
    parser.add_argument("--rows", type=int, default=65536, help="of a batch, on each rank")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--weights", type=Path, default=TRAINED, help="folder of the trained VAEs, or untrained")
    parser.add_argument("--state", type=Path, default=Path("/tmp/h3"), help="what a later command goes on from")
    parser.add_argument("--start", type=Path, help="packed weights that stage 2 goes on from, not from stage 1's state")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clips", type=int, default=1 << 30, help="at most, on each rank")
    parser.add_argument("--canvases", type=_sizes, default=(), help="64x64,96x64: only these")
    parser.add_argument("--lengths", type=_numbers, default=(), help="4,6: only these seconds, all as often")
    parser.add_argument("--profile", action="store_true", help="show where a step's time goes")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="never record a step and replay it")
    given = parser.parse_args(words)
    if given.start and given.stage == 1:
        parser.error("--start is for stage 2: stage 1 begins anew or from --state")
    return Settings(**vars(given))


def _sizes(text: str) -> tuple[Size, ...]:
    pairs = [part.split("x") for part in text.split(",")]
    return tuple((int(width), int(height)) for width, height in pairs)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
