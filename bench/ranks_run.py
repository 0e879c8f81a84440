"""What one rank of ranks_h200.py does: the parts in the order in which they use the engine up."""

from __future__ import annotations

import argparse
import dataclasses

import torch

from bench.ranks_bench import Bench
from bench.ranks_codecs import text_encoder, video_vae
from bench.ranks_requests import error_on_one_rank, exchanges, whole_requests
from bench.ranks_steps import steps
from h3serve.pipeline.generator import Generator
from h3serve.runtime.groups import Ranks
from h3serve.runtime.shape import Shape

WITH_ENGINE = {"requests": whole_requests, "error": error_on_one_rank, "exchanges": exchanges, "vae": video_vae}


def run_rank(rank: int, port: int, options: argparse.Namespace) -> None:
    """Connect, run the wanted parts, leave."""
    torch.set_num_threads(1 if options.demo else 8)
    device = torch.device("cpu") if options.demo else torch.device("cuda", rank)
    ranks = Ranks(rank, Shape(ulysses=options.gpus), port=port, device=device)
    ranks.open()
    run(Bench(ranks, options))
    ranks.close()


def run(bench: Bench) -> None:
    """The wanted parts."""
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
