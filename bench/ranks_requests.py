"""Parts of ranks_h200.py: a whole request, an error on one rank, and bare exchanges."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.ranks_bench import Bench, difference, disconnect
from h3serve.core.errors import Cancelled
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generation_progress import Progress
from h3serve.pipeline.generator import Generator
from h3serve.runtime.encoding_cache import EncodingCache
from h3serve.runtime.parallel.sharding import RankShare


def whole_requests(bench: Bench, engine: Engine) -> None:
    """One GPU, then all; the first time on all connects NCCL."""
    clips: dict[str, Any] = {}

    def generate(generator: Generator, name: str) -> dict[str, Any]:
        """Without an output file; the first rank keeps the latents."""
        began = bench.now()
        result = generator.generate(bench.request(2), keep=("latents",))
        clips[name] = result.kept["final_video_latents"]
        found = {"seconds": bench.now() - began, "stages": result.stats["seconds"]}
        if bench.ranks.leads and "one" in clips:
            found["difference"] = difference(clips[name], clips["one"])
        return found

    single = Generator(dataclasses.replace(engine, encodings=EncodingCache()))
    bench.part("request, one GPU", lambda: generate(single, "one") if bench.ranks.leads else None)
    RankShare(bench.ranks).connect(engine.denoisers.values(), engine.video_vae)
    together = Generator(engine, replica=bench.replica)
    bench.part("request, first on all", lambda: generate(together, "first"))
    engine.encodings.clear()
    bench.part("request, all", lambda: generate(together, "all"))
    disconnect(engine)


def error_on_one_rank(bench: Bench, engine: Engine) -> None:
    """The last rank stops in its second evaluation; how long until all have left, and do they go on?"""
    RankShare(bench.ranks).connect(engine.denoisers.values(), engine.video_vae)
    together = Generator(engine, replica=bench.replica)

    def stop(progress: Progress) -> None:
        if progress.stage == "denoise" and progress.step == 1 and bench.ranks.rank == bench.ranks.shape.size - 1:
            raise Cancelled(f"at {time.time()}")

    def fail() -> dict[str, Any]:
        try:
            together.generate(bench.request(2), on_progress=stop)
        except Cancelled as error:
            return {"seconds": time.time() - float(str(error).split()[-1])}
        return {"error": "none"}

    def go_on() -> dict[str, Any]:
        began = bench.now()
        result = together.generate(bench.request(1, small=True))
        return {"seconds": bench.now() - began, "frames": len(result.video)}

    bench.part("error on one rank", fail)
    bench.part("small request after the error", go_on)
    disconnect(engine)


def exchanges(bench: Bench, engine: Engine) -> None:
    """Bare collectives at the sizes of a 5 s step, in GB/s of what one rank sends."""
    rows, heads = (38_010, 56) if not bench.options.demo else (512, 4)
    world, denoiser = bench.ranks.world, engine.denoiser("t2va")
    size, dtype, device = world.size, denoiser.transformer.compute_dtype, bench.device
    groups = torch.randn(size, rows // size, heads // size, 128, device=device).to(dtype)
    residual = torch.randn(rows, denoiser.config.hidden_size, device=device).to(dtype)

    def rate(work: Callable[[], Any], sent: float) -> dict[str, float]:
        seconds = min(bench.timed(work, 12))
        return {"ms": 1e3 * seconds, "GB/s": sent / seconds / 1e9}

    outward = (size - 1) / size
    bench.part("all to all", lambda: rate(lambda: world.all_to_all(groups), groups.nbytes * outward))
    bench.part("all reduce", lambda: rate(lambda: world.all_reduce(residual), 2 * residual.nbytes * outward))
