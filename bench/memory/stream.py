"""5 s at 1344x768 on a device capped at 24 GiB, against the same request with everything resident.

Encoder and transformer are streamed and the VAEs offloaded, as `--residency stream` does it; the VAE's tiles are
as many as a card of that size gets. Out of memory is met by fewer blocks that stay, and is written down.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.memory.pinned import TimedStore, share_weights, to_pinned, visiting
from bench.memory.run import GIB, Mark, Results, Run, between, body, ready_engine
from h3serve.core.estimate_memory import work_of
from h3serve.core.plan import Plan
from h3serve.models.video_vae.tile_batches import SHARE, fit_tiles, tiles_of
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generation_progress import Progress
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.pipeline.generator import Generator
from h3serve.runtime.encoding_cache import EncodingCache
from h3serve.runtime.machine import Machine
from h3serve.runtime.memory_meter import PeakMeter
from h3serve.runtime.offload.placement import Placement, Streaming
from h3serve.runtime.offload.policy import RELEASED_SIZES, Choice, choose

EVALUATIONS = 3
DISTINCT = {"transformer": 10, "text_encoder": 5}  # blocks with weights of their own
FEWER = 5  # blocks less when memory runs out although the allocator's segments can grow
LATENTS = ("final_video_latents", "final_audio_latents")


@dataclass
class _Clock:
    """Listens to progress: a mark of the device at each evaluation, the most that its allocator had reserved."""

    run: Run
    marks: list[Mark] = field(default_factory=list)
    reserved: int = 0

    def __call__(self, progress: Progress) -> None:
        if self.run.is_cuda:
            self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())
        if progress.stage == "denoise" and progress.steps:
            self.marks.append(self.run.mark())

    def steps_s(self) -> list[float]:
        """Seconds of each evaluation."""
        self.run.sync()
        return [round(between(a, b), 3) for a, b in zip(self.marks, self.marks[1:], strict=False)]


def stream_part(run: Run, found: Results, *, cap_gib: float) -> None:
    """Resident first, then capped."""
    cap = int(cap_gib * GIB)
    engine = ready_engine(run, steps=(EVALUATIONS,))
    if run.is_cuda:
        fit_tiles(engine.video_vae, cap // SHARE)
    networks = {
        "transformer": engine.denoisers["fl2va"],
        "text_encoder": engine.text_encoder,
        "video_vae": engine.video_vae,
        "audio_vae": engine.audio_vae,
    }
    distinct = {name: 2 if run.tiny else count for name, count in DISTINCT.items()}
    for name, count in distinct.items():
        share_weights(networks[name], name, count)
    clock = _Clock(run)
    request = body(run, 768, 5.0, EVALUATIONS, keyframe=True)
    resident = Generator(engine).generate(request, on_progress=clock, keep=("latents",))
    found |= {"resident_steps_s": clock.steps_s(), "resident_seconds": resident.stats["seconds"]}
    found |= {"cap_gib": cap_gib, "rows": resident.plan.rows, "tiles_at_once": engine.video_vae.tile_batch}
    stores, found["to_pinned_memory_s"] = {}, {}
    for name, network in networks.items():
        began = run.spent
        stores[name] = to_pinned(run, network, name, distinct.get(name))
        found["to_pinned_memory_s"][name] = round(run.spent - began, 2)
    run.write()
    free_all(run)
    capped = _Capped(run, engine, networks, stores, request, resident)
    try:
        if run.is_cuda:
            found["held_before_gib"] = round(torch.cuda.memory_allocated() / GIB, 2)
            total = torch.cuda.get_device_properties(run.device).total_memory
            torch.cuda.set_per_process_memory_fraction(cap / total)
        choice = chosen(resident.plan, engine, cap)
        found["choice"] = choice.lines()
        capped.until_done(choice.resident_blocks, found)
    finally:
        if run.is_cuda:
            torch.cuda.set_per_process_memory_fraction(1.0)


def chosen(plan: Plan, engine: Engine, cap: int) -> Choice:
    """What `--residency stream` makes of an empty card of that size."""
    work = work_of(plan, tiles=tiles_of(engine.video_vae))
    return choose("stream", RELEASED_SIZES, work, Machine(cap, cap, 200 * GIB, 200 * GIB))


@dataclass
class _Capped:
    """The request under the cap."""

    run: Run
    engine: Engine
    networks: Mapping[str, nn.Module]
    stores: Mapping[str, TimedStore]
    request: Results
    resident: GenerationResult

    def until_done(self, staying: int, found: Results) -> None:
        """With fewer and fewer blocks that stay until it is done."""
        blocks = len(self.engine.denoisers["fl2va"].transformer.blocks)
        staying, segments_grow = min(staying, blocks - 2), False
        found["attempts"] = attempts = []
        while True:
            attempt: Results = {"blocks_that_stay": staying, "segments_grow": segments_grow}
            attempts.append(attempt)
            try:
                self._attempt(staying, attempt)
                moved = (blocks - staying) * max(flat.num_bytes for flat in self.stores["transformer"].flats[1:])
                found["of_the_copies_hidden"] = hidden(found["resident_steps_s"], attempt, moved)
                return
            except torch.OutOfMemoryError as error:
                attempt["out_of_memory"] = str(error).split(" If reserved")[0]
            if not staying:
                raise MemoryError("not even with no block that stays")
            free_all(self.run)
            if not segments_grow and let_segments_grow():
                segments_grow = True
            else:
                staying = max(0, staying - FEWER)
            self.run.write()

    def _attempt(self, staying: int, found: Results) -> None:
        run, meter, clock = self.run, PeakMeter(self.run.device), _Clock(self.run)
        meter.load_done()
        placed = replace(self.engine, placements=self._placements(staying), peaks=meter, encodings=EncodingCache())
        for store in self.stores.values():
            store.take()
        with tempfile.TemporaryDirectory(prefix="h3-stream-") as folder:
            film = Path(folder) / "stream.mp4"
            result = Generator(placed).generate(self.request, on_progress=clock, keep=("latents",), output=film)
            found["mp4_bytes"] = film.stat().st_size  # it was read back and its frames counted by the writer
        found |= {"stream_steps_s": clock.steps_s(), "stream_seconds": result.stats["seconds"]}
        found["runtime_peak_gib"] = round(meter.runtime_peak / GIB, 2)
        found["peaks_gib"] = {name: round(value / GIB, 2) for name, value in result.stats["peak_bytes"].items()}
        if run.is_cuda:
            found["reserved_gib"] = round(clock.reserved / GIB, 2)
            found["allocator_retries"] = torch.cuda.memory_stats()["num_alloc_retries"]
        for name in LATENTS:
            found[f"{name}_bits_equal"] = bool(np.array_equal(self.resident.kept[name], result.kept[name]))
        found["frames_equal"] = bool(np.array_equal(self.resident.video, result.video))
        for name, store in self.stores.items():
            size, seconds = store.take()
            found[f"{name}_copies"] = {"gb": round(size / 1e9, 3), "s": round(seconds, 3)}

    def _placements(self, staying: int) -> dict[nn.Module, Placement[nn.Module]]:
        ways = {
            "transformer": Streaming(resident_blocks=staying, cyclic=True),
            "text_encoder": Streaming(),
        }
        return {
            network: visiting(self.run, network, name, self.stores[name], ways.get(name))
            for name, network in self.networks.items()
        }


def let_segments_grow() -> bool:
    """Ask the allocator for segments without fragments between them; False where it cannot."""
    try:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    except (AttributeError, RuntimeError):
        return False
    return True


def hidden(resident_s: list[float], streamed: Results, moved: int) -> Results:
    """Of an evaluation's copies, how much went on beside computing: by the fastest evaluation of each kind."""
    rate = streamed["transformer_copies"]["gb"] / max(streamed["transformer_copies"]["s"], 1e-9)
    copies, longer = moved / 1e9 / max(rate, 1e-9), min(streamed["stream_steps_s"]) - min(resident_s)
    return {
        "gb_per_evaluation": round(moved / 1e9, 3),
        "gb_per_s": round(rate, 1),
        "copies_s_per_evaluation": round(copies, 3),
        "evaluation_longer_by_s": round(longer, 3),
        "part": round(1 - max(0.0, longer) / max(copies, 1e-9), 3),
    }


def free_all(run: Run) -> None:
    gc.collect()
    if run.is_cuda:
        torch.cuda.empty_cache()
