"""One GPU against several, full size, random weights: steps, video VAE, text encoder, exchanges, requests, errors.

    python -m bench.ranks_h200 OUT_FOLDER [--gpus 2] [--budget 150] [--parts ...] [--lengths 15 10 5] [--demo]

Writes results.json after every measurement, so that a run that is cut off loses only what it had not reached;
what would begin after `budget` seconds is left out. `--demo` tries everything out with small networks on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing as mp
import time
from pathlib import Path

import torch

from bench.ranks_bench import Bench
from bench.ranks_codecs import text_encoder, video_vae
from bench.ranks_requests import error_on_one_rank, exchanges, whole_requests
from bench.ranks_steps import steps
from h3serve.pipeline.generator import Generator
from h3serve.runtime.groups import Ranks, open_store
from h3serve.runtime.shape import Shape

WITH_ENGINE = {"requests": whole_requests, "error": error_on_one_rank, "exchanges": exchanges, "vae": video_vae}
PARTS = (*WITH_ENGINE, "steps", "text")


def run(bench: Bench) -> None:
    """The parts in the order in which they use the engine up."""
    wanted = bench.options.parts
    engine = bench.build()
    if {"requests", "error"} & set(wanted):
        Generator(engine).generate(bench.request(1, small=True))  # kernels are compiled, networks awake
    for name, part in WITH_ENGINE.items():
        if name in wanted:
            part(bench, engine)
    engine = dataclasses.replace(engine, text_encoder=None, placements={})  # room for a second, cut transformer
    if "steps" in wanted:
        steps(bench, engine)
    del engine
    if "text" in wanted:
        text_encoder(bench)


def rank_main(rank: int, port: int, options: argparse.Namespace) -> None:
    """One rank's process."""
    torch.set_num_threads(1 if options.demo else 8)
    device = torch.device("cpu") if options.demo else torch.device("cuda", rank)
    ranks = Ranks(rank, Shape(ulysses=options.gpus), port=port, device=device)
    ranks.open()
    run(Bench(ranks, options))
    ranks.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--budget", type=float, default=150)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=["vae", "steps", "text"])
    parser.add_argument("--lengths", type=float, nargs="*", default=[15, 10, 5])
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    server, port = open_store()
    context = mp.get_context("fork")  # nothing here has woken a GPU yet, and imports take long
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
