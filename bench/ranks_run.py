"""What one rank of ranks_h200.py does: the parts in the order in which they use the engine up."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import torch

from bench.ranks_bench import Bench
from bench.ranks_codecs import text_encoder, video_vae
from bench.ranks_requests import error_on_one_rank, exchanges, whole_requests
from bench.ranks_steps import steps, without_projections
from h3serve.models.module_tensors import empty
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generator import Generator
from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import Ranks

WITH_ENGINE = {"requests": whole_requests, "error": error_on_one_rank, "exchanges": exchanges}
WITHOUT_PROJECTIONS = {"text": text_encoder, "vae": video_vae}


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
    _run_parts(bench, engine, WITH_ENGINE)
    with without_projections(engine) as ready:
        _run_parts(bench, engine, WITHOUT_PROJECTIONS)
        if "steps" in wanted:
            empty(engine.text_encoder)  # room for a second, cut transformer
            steps(bench, engine, ready)


def _run_parts(bench: Bench, engine: Engine, parts: Mapping[str, Callable[[Bench, Engine], None]]) -> None:
    for name, part in parts.items():
        if name in bench.options.parts:
            part(bench, engine)
