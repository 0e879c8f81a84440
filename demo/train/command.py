"""The command line that both VAEs' trainings have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from demo.train.loop import Clock

Run = Callable[[argparse.Namespace, Clock, Path, int], None]  # arguments, how long, where to, held-out scenes


def command(doc: str | None, *, seed: int, reserve: float, held_out: int) -> argparse.ArgumentParser:
    """A parser with what both take; `reserve` seconds are left for measuring."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--reserve", type=float, default=reserve)
    parser.add_argument("--held-out", type=int, default=held_out)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--start", type=Path, help="weights of an earlier run to go on from")
    parser.add_argument(
        "--only-decoder", action="store_true", help="latents stay what they are for --start, and so do denoisers"
    )
    return parser


def freeze_encoder(vae: nn.Module, decoder: Sequence[nn.Module]) -> None:
    """Leaves gradients to the parts of the decoder alone."""
    vae.requires_grad_(False)
    for part in decoder:
        part.requires_grad_(True)


def rehearse_and_run(run: Run, parser: argparse.ArgumentParser) -> None:
    """All of it in a second and on one scene first: what fails must not fail at the end."""
    arguments = parser.parse_args()
    if arguments.only_decoder and not arguments.start:
        parser.error("--only-decoder needs --start, whose latents stay")
    clock = Clock(arguments.seconds - arguments.reserve)
    with TemporaryDirectory() as place:
        run(arguments, Clock(1.0), Path(place), 1)
    run(arguments, clock, arguments.out, arguments.held_out)
