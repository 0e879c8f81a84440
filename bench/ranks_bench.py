"""What the parts of ranks_h200.py share: a budget, a clock, peaks, and one file of results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.synthetic_engine import synthetic_engine
from h3serve.core.settings import EngineSettings
from h3serve.models.quality import use_quality
from h3serve.models.video_vae.video_vae import in_batches
from h3serve.pipeline.engine import Engine, load_engine
from h3serve.pipeline.replica import Member
from h3serve.runtime.encoding_cache import EncodingCache
from h3serve.runtime.parallel.process_group import Ranks

PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6


class Bench:
    """One rank's side; the first rank writes."""

    def __init__(self, ranks: Ranks, options: argparse.Namespace) -> None:
        self.ranks, self.options, self.device = ranks, options, ranks.device
        self.began = time.monotonic()
        self.found: dict[str, Any] = {"gpus": ranks.shape.size, "parts": {}}
        self.replica = Member(ranks)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def now(self) -> float:
        """Seconds, once all queued work is done."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def held(self) -> int:
        """Bytes of device memory in use; unused ones are given back first."""
        if not self.on_gpu:
            return 0
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(self.device)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.ranks.world.gather_json(None)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """Run a part on all ranks, unless the first one's budget is used up; running out of memory is a result."""
        late = time.monotonic() - self.began > self.options.budget
        if self.ranks.world.gather_json(late)[0]:
            return
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            result = work()
        except torch.OutOfMemoryError as error:
            result = {"error": str(error)[:200]}
        peak = torch.cuda.max_memory_allocated(self.device) if self.on_gpu else 0
        self.found["parts"][name] = everybody = self.ranks.world.gather_json({"result": result, "peak": peak})
        if self.ranks.leads:
            print(f"{time.monotonic() - self.began:6.1f} s  {name}: {json.dumps(everybody)[:400]}", flush=True)
            (self.options.out / "results.json").write_text(json.dumps(self.found, indent=1))

    def timed(self, work: Callable[[], Any], repeats: int = 1, *, everybody: bool = True) -> list[float]:
        """Seconds of each repeat; with `everybody` false, of the first rank while the others wait."""
        seconds = []
        for _ in range(repeats):
            self.barrier()
            if everybody or self.ranks.leads:
                began = self.now()
                work()
                seconds.append(self.now() - began)
        self.barrier()
        return seconds

    def build(self) -> Engine:
        """The same random weights on every rank, or `demo-random`; an encoding is kept nowhere."""
        began = self.now()
        if self.options.demo:
            engine = load_engine(EngineSettings(model="demo-random", device="cpu"))
        else:
            engine = synthetic_engine(self.device)
        weights = engine.denoiser("t2va").transformer.state_dict()
        some = [float(weights[name].double().sum()) for name in sorted(weights)[::97]]
        attention = getattr(engine.denoiser("t2va").transformer.attention, "__name__", "?")
        seconds = self.now() - began
        self.part("build", lambda: {"seconds": seconds, "sums": some, "attention": attention, "held": self.held()})
        return dataclasses.replace(engine, encodings=EncodingCache())

    def request(self, evaluations: int, *, small: bool = False) -> dict[str, Any]:
        """A T2VA request of 5 s."""
        return request_of(5, edge=self.edge(small=small), evaluations=evaluations)

    def edge(self, *, small: bool = False) -> int:
        """The short edge that is measured; `small` only wakes the networks."""
        return 64 if small or self.options.demo else 768


def request_of(seconds: float, *, edge: int, evaluations: int) -> dict[str, Any]:
    target = {"short_edge": edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    return {"task": "t2va", "prompt": PROMPT, "target": target, "num_inference_steps": evaluations, "seed": 1}


def disconnect(engine: Engine) -> None:
    """Every rank works for itself again."""
    engine.video_vae.run_tiles = in_batches
    for denoiser in engine.denoisers.values():
        denoiser.transformer.__dict__.pop("run_blocks", None)
        use_quality(denoiser.transformer, engine.quality, engine.device)


def difference(found: Any, wanted: Any) -> float:
    """Norm of the difference over the norm."""
    found, wanted = (part.float().cpu().numpy() if isinstance(part, torch.Tensor) else part for part in (found, wanted))
    return float(
        np.linalg.norm(np.subtract(found, wanted, dtype=np.float64)) / np.linalg.norm(wanted.astype(np.float64))
    )
