"""One GPU against several, full size, random weights: steps, video VAE, text encoder, exchanges, requests, errors.

    python -m bench.ranks_h200 OUT_FOLDER [--gpus 2] [--budget 130] [--parts ...] [--lengths 15 10] [--demo]

Writes results.json after every measurement, so that a run that is cut off loses only what it had not reached;
what would begin after `budget` seconds is left out. `--demo` tries everything out with small networks on a CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import time
from pathlib import Path

from h3serve.runtime.parallel.process_group import open_store

PARTS = ("requests", "error", "exchanges", "vae", "steps", "text")


def rank_main(rank: int, port: int, options: argparse.Namespace) -> None:
    """One rank's process; this one has no need of what the ranks import."""
    from bench.ranks_run import run_rank

    run_rank(rank, port, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--budget", type=float, default=130)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=["text", "vae", "steps"])
    parser.add_argument("--lengths", type=float, nargs="*", default=[15, 10])
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    server, port = open_store()
    context = mp.get_context("spawn")  # a library may have woken CUDA here by being imported
    processes = [context.Process(target=rank_main, args=(rank, port, options)) for rank in range(options.gpus)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + options.budget + 90
    try:
        while any(p.is_alive() for p in processes) and time.monotonic() < deadline:
            if any(p.exitcode not in (None, 0) for p in processes):
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.join()
    del server


if __name__ == "__main__":
    main()
