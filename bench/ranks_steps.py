"""Part of ranks_h200.py: one evaluation on one GPU, with the sequence over all, and with the linears over all.

The AdaLN projections are gone by then, as in a loaded engine, and under tensor parallelism the whole transformer
is too: peaks are those of a replica that loaded only its own slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bench.ranks_bench import Bench, difference, disconnect, request_of
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.module_tensors import empty
from h3serve.models.quality import use_quality
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.packing import pack
from h3serve.pipeline.predict import prepare_static
from h3serve.pipeline.schedule import Schedule, all_step_times, sigma_grid
from h3serve.runtime.adaln.modulation_tables import Scheduled
from h3serve.runtime.parallel.sharding import RankShare
from h3serve.runtime.parallel.tensor_parallel import part_of_state, shard_denoiser

TEXT_TOKENS = 336
WARM_EDGE = 256  # compiles the kernels in a second


class Step:
    """One evaluation of a clip, with the same inputs on every rank."""

    def __init__(self, engine: Engine, seconds: float, *, edge: int) -> None:
        plan = Plan.resolve(parse_request(request_of(seconds, edge=edge, evaluations=1)))
        self.layout = pack(np.full(TEXT_TOKENS, 1, np.int64), [], plan.target)
        generator, config = torch.Generator().manual_seed(2), engine.denoiser("t2va").config

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(engine.device)

        self.rows = len(self.layout.tags)
        self.video = normal(len(self.layout.video_index), config.video_row_dim)
        self.audio = normal(len(self.layout.audio_index), config.audio_in_channels)
        self.text = normal(TEXT_TOKENS, config.text_dim)
        schedule = Schedule(sigma_grid(8, 12.0))
        self.times = all_step_times((schedule, schedule), self.layout, (0.999, 0.999))[3:4]

    @torch.inference_mode()
    def run(self, denoiser: Denoiser, ready: Scheduled) -> torch.Tensor:
        """Velocities of the video rows, on the device; the token refiner is part of it."""
        static = prepare_static(denoiser.transformer, self.text, self.layout)
        slots = torch.from_numpy(ready.slots[0][self.times[0].slots]).to(self.video.device)
        kinds = torch.from_numpy(self.layout.kinds).to(self.video.device)
        velocities, _ = denoiser.transformer(
            self.video, self.audio, static=static, modulation=ready.modulation, timestep_index=slots[kinds]
        )
        return velocities


class Steps:
    """All lengths on all shapes."""

    def __init__(self, bench: Bench, engine: Engine, ready: Scheduled) -> None:
        self.bench, self.engine, self.ready = bench, engine, ready
        self.whole = engine.denoiser("t2va")
        self.alone: dict[float, torch.Tensor] = {}  # this rank's velocities without the others
        self.warm = Step(engine, 4, edge=64 if bench.options.demo else WARM_EDGE)

    def length(self, seconds: float) -> Step:
        return Step(self.engine, 4 if self.bench.options.demo else seconds, edge=self.bench.edge())

    def timed(self, step: Step, denoiser: Denoiser) -> tuple[float, torch.Tensor]:
        began = self.bench.now()
        velocities = step.run(denoiser, self.ready)
        return self.bench.now() - began, velocities.float().cpu()

    def each_alone(self) -> dict[str, Any]:
        """Every rank takes other lengths, at once; the last rank takes its last one with the exact kernels too."""
        ranks, found = self.bench.ranks, {}
        own = self.bench.options.lengths[ranks.rank :: ranks.shape.size]
        self.warm.run(self.whole, self.ready)
        for seconds in own:
            took, self.alone[seconds] = self.timed(step := self.length(seconds), self.whole)
            found[str(seconds)] = {"rows": step.rows, "seconds": took}
        if own and ranks.rank == min(ranks.shape.size, len(self.bench.options.lengths)) - 1:
            use_quality(self.whole.transformer, "exact", self.bench.device)
            took, velocities = self.timed(self.length(own[-1]), self.whole)
            use_quality(self.whole.transformer, self.engine.quality, self.bench.device)
            found["exact"] = {"of": own[-1], "seconds": took, "difference": difference(self.alone[own[-1]], velocities)}
        return found

    def together(self, name: str, denoiser: Denoiser) -> None:
        """The same lengths on all ranks; whoever has a length alone compares."""
        bench = self.bench
        bench.part(f"{name}, first evaluation", lambda: {"seconds": self.timed(self.warm, denoiser)[0]})
        for seconds in bench.options.lengths:

            def measure(seconds: float = seconds) -> dict[str, Any]:
                step = self.length(seconds)
                bench.barrier()
                took, velocities = self.timed(step, denoiser)
                found = {"rows": step.rows, "seconds": took}
                if seconds in self.alone:
                    found["difference"] = difference(velocities, self.alone[seconds])
                return found

            bench.part(f"step {seconds:g} s, {name}", measure)

    def divide(self) -> Denoiser:
        """This rank's slice of the transformer; the whole one is gone afterwards."""
        with torch.device("meta"):
            denoiser = Denoiser(self.whole.config).eval().requires_grad_(False)
        part_of = shard_denoiser(self.bench.ranks.world)(denoiser)
        held = {name: value for name, value in self.whole.state_dict().items() if not value.is_meta}
        part_of_state(denoiser, part_of, {n: v for n, v in held.items() if n.startswith("transformer.")}, strict=False)
        del held
        empty(self.whole)
        use_quality(denoiser.transformer, self.engine.quality, self.bench.device)
        return denoiser


@contextmanager
def without_projections(engine: Engine) -> Iterator[Scheduled]:
    """The modulation of the steps' timesteps; the projections that made it are gone, which makes room."""
    times = Step(engine, 4, edge=64).times
    with torch.inference_mode():
        schedule = engine.modulation("t2va").schedule([t.values for t in times])
        ready = schedule.__enter__()
    empty(engine.denoiser("t2va").modulation)
    try:
        yield ready
    finally:
        schedule.__exit__(None, None, None)


def steps(bench: Bench, engine: Engine, ready: Scheduled) -> None:
    """The engine's transformer is used up: this is the last part that needs it."""
    all_steps = Steps(bench, engine, ready)
    bench.part("steps begin", lambda: {"held": bench.held()})
    bench.part("steps, each GPU alone", all_steps.each_alone)
    RankShare(bench.ranks).connect_sequence([all_steps.whole])
    all_steps.together("Ulysses", all_steps.whole)
    disconnect(engine)
    divided = all_steps.divide()
    bench.part("divided by tensor parallelism", lambda: {"held": bench.held()})
    all_steps.together("tensor parallel", divided)
