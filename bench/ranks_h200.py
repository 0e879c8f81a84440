"""One GPU against several, full size, random weights: steps, exchanges, a whole request, and an error on one rank.

    python bench/ranks_h200.py OUT_FOLDER [--gpus 2] [--budget 260] [--parts ...] [--lengths 5 10 15] [--demo]

Writes results.json after every part, so that a run that is cut off loses only what it had not reached; parts
that would begin after `budget` seconds are left out. `--demo` tries everything out with small networks on a CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing as mp
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from h3serve.core.errors import Cancelled
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.core.settings import EngineSettings
from h3serve.models.denoiser import Denoiser
from h3serve.models.tiers import use_tier
from h3serve.pipeline.engine import Engine, load_engine
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.packing import pack
from h3serve.pipeline.predict import all_step_times, prepare_static
from h3serve.pipeline.progress import Progress
from h3serve.pipeline.replica import Member
from h3serve.pipeline.schedule import Schedule, sigma_grid
from h3serve.pipeline.synthetic import synthetic_engine
from h3serve.runtime.encodings import EncodingCache
from h3serve.runtime.groups import Ranks, open_store
from h3serve.runtime.shape import Shape
from h3serve.runtime.sharding import RankShare
from h3serve.runtime.tensor_parallel import cut_denoiser, part_of_state

PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6


def request_of(seconds: float, *, demo: bool, evaluations: int) -> dict[str, Any]:
    edge = 64 if demo else 768
    target = {"short_edge": edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    return {"task": "t2va", "prompt": PROMPT, "target": target, "num_inference_steps": evaluations, "seed": 1}


class Step:
    """One evaluation of a clip of `seconds`, with the same inputs on every rank."""

    def __init__(self, engine: Engine, seconds: float, *, demo: bool) -> None:
        plan = Plan.resolve(parse_request(request_of(seconds, demo=demo, evaluations=1)))
        layout = pack(np.full(336, 1, np.int64), [], plan.target)
        generator, device = torch.Generator().manual_seed(2), engine.device

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device)

        denoiser = engine.denoiser("t2va")
        self.rows = len(layout.tags)
        self.video = normal(len(layout.video_index), denoiser.config.video_row_dim)
        self.audio = normal(len(layout.audio_index), denoiser.config.audio_in_channels)
        self.text, self.layout = normal(336, denoiser.config.text_dim), layout
        schedule = Schedule(sigma_grid(8, 12.0))
        self.times = all_step_times((schedule, schedule), layout, (0.999, 0.999))[3:4]

    @torch.inference_mode()
    def run(self, engine: Engine, denoiser: Denoiser) -> torch.Tensor:
        """Velocities of the video rows, on the CPU."""
        transformer = denoiser.transformer
        static = prepare_static(transformer, self.text, self.layout)
        with engine.modulation("t2va").schedule([t.values for t in self.times]) as ready:
            slots = torch.from_numpy(ready.slots[0][self.times[0].slots]).to(engine.device)
            kinds = torch.from_numpy(self.layout.kinds).to(engine.device)
            video, _ = transformer(
                self.video, self.audio, static=static, modulation=ready.modulation, timestep_index=slots[kinds]
            )
        return video.float().cpu()


class Bench:
    """All parts on one rank; the first rank writes."""

    def __init__(self, ranks: Ranks, options: argparse.Namespace) -> None:
        self.ranks, self.options, self.device = ranks, options, ranks.device
        self.began = time.monotonic()
        self.found: dict[str, Any] = {"gpus": ranks.shape.size, "parts": {}}
        self.clips: dict[str, Any] = {}

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """Run a part on all ranks, unless the first one's budget is used up; an error is a result."""
        late = time.monotonic() - self.began > self.options.budget
        if self.ranks.world.gather_json(late)[0]:
            return
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            result = work()
        except torch.OutOfMemoryError as error:
            result = {"error": str(error)[:200]}
        everybody = self.ranks.world.gather_json({"result": result, "peak": self.peak()})
        self.found["parts"][name] = everybody
        if self.ranks.leads:
            print(f"{time.monotonic() - self.began:6.1f} s  {name}: {json.dumps(everybody)[:400]}", flush=True)
            (self.options.out / "results.json").write_text(json.dumps(self.found, indent=1))

    def timed(self, work: Callable[[], Any], repeats: int, *, everybody: bool = True) -> list[float]:
        """Seconds of each repeat; with `everybody` false, of the first rank while the others wait."""
        seconds = []
        for _ in range(repeats):
            self.ranks.world.gather_json(None)
            if everybody or self.ranks.leads:
                began = self.now()
                work()
                seconds.append(self.now() - began)
        self.ranks.world.gather_json(None)
        return seconds

    def run(self) -> None:
        engine = self.build()
        self.replica = Member(self.ranks)
        # Kernels are compiled and networks awake; the prompt is encoded, on all ranks alike.
        Generator(engine).generate(self.request(1, small=True))
        if "requests" in self.options.parts:
            self.whole_requests(engine)
        # The encoder makes room for a second, cut transformer.
        engine = dataclasses.replace(engine, text_encoder=None, placements={})
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if "exchanges" in self.options.parts:
            self.exchanges(engine.denoiser("t2va"))
        divided = self.divide(engine)
        for seconds in self.options.lengths:
            self.steps(engine, divided, seconds=seconds)
        if "error" in self.options.parts:
            self.error_on_one_rank(engine)

    def request(self, evaluations: int, *, small: bool = False) -> dict[str, Any]:
        return request_of(5, demo=small or self.options.demo, evaluations=evaluations)

    def build(self) -> Engine:
        began = self.now()
        if self.options.demo:
            engine = load_engine(EngineSettings(model="demo", device="cpu"))
        else:
            engine = synthetic_engine(self.device)
        weights = engine.denoiser("t2va").transformer.state_dict()
        some = [float(weights[name].double().sum()) for name in sorted(weights)[::97]]
        self.part("build", lambda: {"seconds": self.now() - began, "sums": some})
        return dataclasses.replace(engine, encodings=EncodingCache())

    def generate(self, generator: Generator, name: str) -> dict[str, Any]:
        """A whole request without an output file; the first rank keeps the latents."""
        began = self.now()
        result = generator.generate(self.request(2), keep=("latents",))
        self.clips[name] = result.kept["final_video_latents"]
        found = {"seconds": self.now() - began, "stages": result.stats["seconds"]}
        if self.ranks.leads and "one" in self.clips:
            found["difference"] = difference(self.clips[name], self.clips["one"])
        return found

    def whole_requests(self, engine: Engine) -> None:
        """One GPU, then all; the first time on all connects NCCL."""
        single = Generator(dataclasses.replace(engine, encodings=EncodingCache()))
        self.part("request, one GPU", lambda: self.generate(single, "one") if self.ranks.leads else None)
        RankShare(self.ranks).connect(engine.denoisers.values(), engine.video_vae)
        together = Generator(engine, replica=self.replica)
        self.part("request, first on all", lambda: self.generate(together, "first"))
        engine.encodings.clear()
        self.part("request, all", lambda: self.generate(together, "all"))
        undo(engine, self.device)

    def error_on_one_rank(self, engine: Engine) -> None:
        """The last rank stops in its second evaluation; how long until all have left, and do they go on?"""
        RankShare(self.ranks).connect(engine.denoisers.values(), engine.video_vae)
        together = Generator(engine, replica=self.replica)

        def stop(progress: Progress) -> None:
            if progress.stage == "denoise" and progress.step == 1 and not self.ranks.leads:
                raise Cancelled(f"at {time.time()}")

        def fail() -> dict[str, Any]:
            try:
                together.generate(self.request(2), on_progress=stop)
            except Cancelled as error:
                return {"seconds": time.time() - float(str(error).split()[-1])}
            return {"error": "none"}

        def go_on() -> dict[str, Any]:
            began = self.now()
            result = together.generate(self.request(1, small=True))
            return {"seconds": self.now() - began, "frames": len(result.video)}

        self.part("error on one rank", fail)
        self.part("small request after the error", go_on)
        undo(engine, self.device)

    def exchanges(self, denoiser: Denoiser) -> None:
        """Bare collectives at the sizes of a 5 s step, in GB/s of what one rank sends."""
        rows, heads = (38_010, 56) if not self.options.demo else (512, 4)
        size, dtype = self.ranks.world.size, denoiser.transformer.compute_dtype
        groups = torch.randn(size, rows // size, heads // size, 128, device=self.device).to(dtype)
        residual = torch.randn(rows, denoiser.config.hidden_size, device=self.device).to(dtype)

        def rate(work: Callable[[], Any], sent: float) -> dict[str, float]:
            seconds = min(self.timed(work, 12))
            return {"ms": 1e3 * seconds, "GB/s": sent / seconds / 1e9}

        outward = (size - 1) / size
        self.part("all to all", lambda: rate(lambda: self.ranks.world.all_to_all(groups), groups.nbytes * outward))
        self.part(
            "all reduce", lambda: rate(lambda: self.ranks.world.all_reduce(residual), 2 * residual.nbytes * outward)
        )

    def divide(self, engine: Engine) -> Denoiser:
        """This rank's slice of the transformer, if all ranks share every linear."""
        whole = engine.denoiser("t2va")
        with torch.device("meta"):
            denoiser = Denoiser(whole.config).eval().requires_grad_(False)
        part_of = cut_denoiser(self.ranks.world)(denoiser)
        held = {name: value for name, value in whole.state_dict().items() if not value.is_meta}
        own = {n: v for n, v in held.items() if n.startswith("transformer.")}
        part_of_state(denoiser, part_of, own, strict=False)
        use_tier(denoiser.transformer, engine.quality, self.device)
        return denoiser

    def steps(self, engine: Engine, divided: Denoiser, *, seconds: float) -> None:
        """One evaluation: one GPU, Ulysses over all, tensor parallel over all; velocities compared."""
        step = Step(engine, 4 if self.options.demo else seconds, demo=self.options.demo)
        whole = engine.denoiser("t2va")
        kept: dict[str, torch.Tensor] = {}

        def measure(name: str, denoiser: Denoiser, *, everybody: bool = True) -> dict[str, Any]:
            def once() -> None:
                kept[name] = step.run(engine, denoiser)

            if everybody and seconds == self.options.lengths[0]:
                self.timed(once, 1)  # connects the team
            return {"rows": step.rows, "seconds": self.timed(once, 1, everybody=everybody)}

        def compared(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            found = work()
            if name in kept and "one GPU" in kept:
                found["difference"] = difference(kept[name].numpy(), kept["one GPU"].numpy())
            return found

        def with_exact() -> dict[str, Any]:
            use_tier(whole.transformer, "exact", self.device)
            try:
                return measure("exact", whole, everybody=False)
            finally:
                use_tier(whole.transformer, engine.quality, self.device)

        def with_ulysses() -> dict[str, Any]:
            share = RankShare(self.ranks)
            share.connect_sequence([whole])
            try:
                return measure("Ulysses", whole)
            finally:
                undo(engine, self.device)

        self.part(f"step {seconds} s, one GPU", lambda: measure("one GPU", whole, everybody=False))
        self.part(f"step {seconds} s, Ulysses", lambda: compared("Ulysses", with_ulysses))
        self.part(f"step {seconds} s, tensor parallel", lambda: compared("tp", lambda: measure("tp", divided)))
        if seconds == self.options.lengths[0]:
            self.part(f"step {seconds} s, one GPU, exact", lambda: compared("exact", with_exact))


def undo(engine: Engine, device: torch.device) -> None:
    """Take the sharded sequence off again."""
    for denoiser in engine.denoisers.values():
        denoiser.transformer.__dict__.pop("run_blocks", None)
        use_tier(denoiser.transformer, engine.quality, device)


def difference(found: Any, wanted: Any) -> float:
    """Norm of the difference over the norm."""
    return float(
        np.linalg.norm(np.subtract(found, wanted, dtype=np.float64)) / np.linalg.norm(wanted.astype(np.float64))
    )


def rank_main(rank: int, size: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1 if options.demo else 8)
    device = torch.device("cpu") if options.demo else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = Ranks(rank, Shape(ulysses=size), port=port, device=device)
    ranks.open()
    Bench(ranks, options).run()
    ranks.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--budget", type=float, default=260)
    parser.add_argument("--parts", nargs="*", default=["requests", "error", "exchanges"])
    parser.add_argument("--lengths", type=float, nargs="*", default=[5, 10, 15])
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    server, port = open_store()
    context = mp.get_context("fork")  # nothing here has woken a GPU yet, and imports take long
    processes = [context.Process(target=rank_main, args=(r, options.gpus, port, options)) for r in range(options.gpus)]
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
