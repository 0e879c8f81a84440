"""How near `euler` and `multistep` come to the converged clip at few evaluations: `python -m bench.solvers`.

The demo checkpoint on a CPU in float32. The truth of each prompt is `multistep` with 400 evaluations, as `euler`'s own
error at 400 would hide what is measured. Writes a Markdown table of decibels and root mean square errors, and slopes.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from h3serve.core.limits import Solver
from h3serve.pipeline.generator import Generator

TRUTH = 400
COUNTS = (50, 20, 10, 8, 6, 4)
ASYMPTOTIC = (200, 100, 50)  # of the slopes, on the first prompt
LATENTS = ("final_video_latents", "final_audio_latents")
PROMPTS = (
    "A red ball rolls to the right over a green floor while a low bell rings twice.",
    "A blue square rises over a grey background, with a short beep.",
)
Array = np.ndarray[Any, Any]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--out", type=Path, default=Path("bench/results/solvers.md"))
    args = parser.parse_args()
    generator = Generator.from_pretrained("demo", device="cpu", dtype="float32")

    def latents(seed: int, solver: str, count: int) -> list[Array]:
        began = time.perf_counter()
        target = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
        fields = {"task": "t2va", "prompt": PROMPTS[seed], "target": target, "seed": seed, "solver": solver}
        result = generator.generate({**fields, "num_inference_steps": count}, keep=("latents",))
        print(f"seed {seed}, {solver} {count}: {time.perf_counter() - began:.0f} s", flush=True)
        return [result.kept[name] for name in LATENTS]

    solvers = get_args(Solver)
    truths = [latents(seed, "multistep", TRUTH) for seed in range(args.prompts)]
    wanted = {(solver, count, 0) for solver in solvers for count in ASYMPTOTIC}
    wanted |= {(solver, count, seed) for solver in solvers for count in COUNTS for seed in range(args.prompts)}
    found = {key: [*map(error, latents(key[2], *key[:2]), truths[key[2]])] for key in sorted(wanted)}
    lines = [*_head(args.prompts), *_table(found, args.prompts), "", *_slopes(found)]
    args.out.write_text("\n".join(lines) + "\n")


def error(made: Array, truth: Array) -> float:
    """Root mean square error, in parts of the truth's range."""
    return float(np.sqrt(np.square(made - truth).mean()) / np.ptp(truth))


def decibels(part: float) -> float:
    """PSNR of such an error."""
    return float(-20 * np.log10(part))


def _head(prompts: int) -> list[str]:
    return [
        "# Solvers at few evaluations",
        "",
        f"`python -m bench.solvers`: the demo checkpoint, CPU, float32, torch {torch.__version__}; {prompts} prompts,",
        f"seeds 0 to {prompts - 1}, 64x64 pixels, 4 s, shifts 12 and 3. PSNR of the final latents to `multistep`",
        f"with {TRUTH} evaluations, in dB of their range: the mean over the prompts, and the worst.",
        "",
    ]


def _table(found: dict[tuple[str, int, int], list[float]], prompts: int) -> list[str]:
    lines = ["| evaluations | solver | video | worst | audio | worst |", "|---|---|---|---|---|---|"]
    for count in COUNTS:
        for solver in get_args(Solver):
            streams = zip(*(found[solver, count, seed] for seed in range(prompts)), strict=True)
            values = [[decibels(part) for part in parts] for parts in streams]
            cells = " | ".join(f"{np.mean(v):.1f} | {min(v):.1f}" for v in values)
            lines.append(f"| {count} | `{solver}` | {cells} |")
    return lines


def _slopes(found: dict[tuple[str, int, int], list[float]]) -> list[str]:
    """Slopes of the error over the evaluations, between neighbours of `ASYMPTOTIC`, first prompt."""
    lines = ["| evaluations, first prompt | solver | order of video | of audio |", "|---|---|---|---|"]
    for many, few in pairwise(ASYMPTOTIC):
        for solver in get_args(Solver):
            pairs = zip(found[solver, few, 0], found[solver, many, 0], strict=True)
            orders = " | ".join(f"{np.log(a / b) / np.log(many / few):.2f}" for a, b in pairs)
            lines.append(f"| {few} to {many} | `{solver}` | {orders} |")
    return lines


if __name__ == "__main__":
    main()
