"""Memory at the released sizes, random weights: AdaLN tiers, peaks against the plan, with reference videos too, mixed
requests, a 24 GiB cap.

    python -m bench.memory OUT [--only stream mixed] [--limit 260] [--cap-gib 24] [--tiny]

Writes OUT/memory.json after every part, so that a run that is cut short leaves what it has seen. Parts go in the
order in which they are named, each with an engine of its own; what would begin after `--limit` seconds is left
out and says so. `--tiny` runs the same code with demo sizes on a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench.memory.mixed import mixed_part
from bench.memory.peaks import peaks_part
from bench.memory.references import references_part
from bench.memory.run import Results, Run
from bench.memory.stream import free_all, stream_part
from bench.memory.tiers import tiers_part

PARTS: dict[str, Callable[[Run, Results], None]] = {
    "adaln": tiers_part,
    "peaks": peaks_part,
    "mixed": mixed_part,
    "references": references_part,
    "stream": stream_part,
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=260)
    parser.add_argument("--cap-gib", type=float, default=24)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    run = Run(args.out, limit=args.limit, tiny=args.tiny)
    for name in args.only:
        part = PARTS[name]
        run.part(name, partial(part, cap_gib=args.cap_gib) if name == "stream" else part)
        free_all(run)


if __name__ == "__main__":
    main()
