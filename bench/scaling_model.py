"""Seconds of one evaluation against ranks, sequence length and link speed, from measured pieces.

    python bench/scaling_model.py [--link 260] [--gemm 730] [--attention 560] ...

A step is work divided by rates, plus what the ranks exchange; nothing overlaps. Prints a table of predictions.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

from h3serve.core.estimate_work import RELEASED_MODEL as M
from h3serve.runtime.parallel.parallel_layout import Shape

ROWS = {5: 38_046, 10: 73_722, 15: 109_398}  # T2VA at 1344x768, 336 text tokens
SHAPES = [
    Shape(1, 1),
    Shape(2, 1),
    Shape(4, 1),
    Shape(8, 1),
    Shape(1, 2),
    Shape(1, 4),
    Shape(1, 8),
    Shape(2, 2),
    Shape(4, 2),
]
BF16 = 2


@dataclass(frozen=True)
class Pieces:
    """Rates of one H200 inside a step, and of one rank's link. bench/results/ranks_h200.md has the measurements."""

    gemm: float = 730.0  # TFLOP/s
    attention: float = 650.0  # TFLOP/s, FlashAttention-4; 575 with the kernels of torch
    memory: float = 3.5  # TB/s
    link: float = 225.0  # GB/s that one rank sends in an exchange among all
    reduce: float = 283.0  # GB/s that one rank sends in a sum over all
    start: float = 20.0  # microseconds before an exchange moves anything


def step_seconds(rows: int, shape: Shape, p: Pieces) -> dict[str, float]:
    """Seconds of one evaluation by what they are spent on."""
    u, t = shape.ulysses, shape.tp
    own, inner, ffn = rows / u, M.inner / t, M.ffn / t
    linear = 2 * own * (4 * M.hidden * inner + 3 * M.hidden * ffn)
    attention = 4 * rows * rows * inner / u
    # Norms and gates pass over whole rows on every rank of a tensor-parallel team; the rest is divided.
    moved = BF16 * own * (10 * M.hidden + 4 * inner + 3 * ffn)
    sent = BF16 * own * inner * 4 * (u - 1) / u
    packed = BF16 * own * inner * 4 * 2 * (1.25 if u > 1 else 0)
    summed = 2 * BF16 * own * M.hidden * 2 * (t - 1) / t
    exchanges = (4 if u > 1 else 0) + (2 if t > 1 else 0)
    return {
        "linear": M.layers * linear / p.gemm / 1e12,
        "attention": M.layers * attention / p.attention / 1e12,
        "memory": M.layers * (moved + packed) / p.memory / 1e12,
        "exchange": M.layers * (sent / p.link / 1e9 + summed / p.reduce / 1e9 + exchanges * p.start / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Pieces):
        parser.add_argument(f"--{field.name}", type=float, default=field.default)
    p = Pieces(**vars(parser.parse_args()))
    print(", ".join(f"{name} {value:g}" for name, value in vars(p).items()))
    print("\n| GPUs | ulysses x tp | " + " | ".join(f"{s} s clip: s/step | speed-up | exchange" for s in ROWS) + " |")
    print("|---|---|" + "---|---|---|" * len(ROWS))
    for shape in SHAPES:
        cells = []
        for rows in ROWS.values():
            parts = step_seconds(rows, shape, p)
            alone, total = sum(step_seconds(rows, Shape(), p).values()), sum(parts.values())
            cells += [f"{total:.2f}", f"{alone / total:.2f}x", f"{100 * parts['exchange'] / total:.1f} %"]
        print(f"| {shape.size} | {shape.ulysses} x {shape.tp} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
