"""Memory at the released sizes, random weights: AdaLN tiers, peaks against the plan, mixed requests, a 24 GiB cap.

    python bench/memory_h200.py OUT [--limit 260] [--only stream] [--tiny]

Writes OUT/memory.json after every part, so that a run that is cut short leaves what it has seen. `--tiny` runs the
same code with demo sizes on a CPU. 24.3 GiB of projections are written to the temporary folder; parts that would
begin after `--limit` seconds are left out and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from h3serve.core.capacity import SLOTS, work_of
from h3serve.core.plan import Plan
from h3serve.models.denoiser import Denoiser, key_map
from h3serve.models.modulation import Modulation
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.progress import Progress
from h3serve.pipeline.schedule import default_times
from h3serve.pipeline.synthetic import synthetic_engine
from h3serve.runtime import buffers
from h3serve.runtime.adaln import AdaLN
from h3serve.runtime.identity import maker_of
from h3serve.runtime.keys import TableShape
from h3serve.runtime.machine import Machine
from h3serve.runtime.meters import PeakMeter
from h3serve.runtime.pages import PageCache
from h3serve.runtime.placement import Streaming, from_host
from h3serve.runtime.rebuild import Projections, is_projection, projections_of
from h3serve.runtime.residency import RELEASED_SIZES, Choice, choose
from h3serve.runtime.sidecar import Origin, SidecarFolder
from h3serve.runtime.sizes import tile_bytes
from h3serve.runtime.slab import Slab
from h3serve.runtime.streamed import empty
from h3serve.weights import demo_sizes
from h3serve.weights.demo_tokenizer import build_tokenizer
from h3serve.weights.index import read_index
from h3serve.weights.rawread import RawReader
from h3serve.weights.released import RELEASED

GIB = 2**30
PARTS = ("adaln", "peaks", "mixed", "stream")
PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6
Results = dict[str, Any]


class Run:
    """What all parts share: device, results so far, and the clock."""

    def __init__(self, out: Path, *, limit: float, tiny: bool, only: Sequence[str]) -> None:
        self.out, self.tiny, self.limit, self._only = out, tiny, limit, only
        self.device = torch.device("cpu" if tiny else "cuda:0")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self._began = time.perf_counter()
        self.results: Results = {"torch": torch.__version__}
        if not tiny:
            self.results["device"] = torch.cuda.get_device_name()
        out.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, work: Callable[[Results], None]) -> None:
        """One part's figures into the file, its failure too: the parts behind it still run."""
        if name not in self._only:
            return
        found: Results = {}
        self.results[name] = found
        if self.spent > self.limit:
            found["left_out"] = f"{self.spent:.0f} s had gone by"
        else:
            try:
                work(found)
            except Exception as error:  # a figure less is better than none
                found["failed"] = f"{type(error).__name__}: {error}"
        self.results[f"{name}_done_at_s"] = round(self.spent, 1)
        print(name, json.dumps(self.results[name], indent=1), flush=True)
        (self.out / "memory.json").write_text(json.dumps(self.results, indent=1))

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        return round(time.perf_counter() - began, 4)

    def peak_gib(self) -> float:
        return round(torch.cuda.max_memory_allocated() / GIB, 2) if self.device.type == "cuda" else 0.0


def configs(tiny: bool) -> Mapping[str, Mapping[str, Any]]:
    if not tiny:
        return RELEASED
    latents = {"latents_mean": [0.0] * 24, "latents_std": [1.0] * 24}
    sound = {"latents_mean": [0.0] * 32, "latents_std": [1.0] * 32}
    return {
        "transformer": demo_sizes.transformer("original"),
        "text_encoder": demo_sizes.text_encoder(build_tokenizer().get_vocab(with_added_tokens=True)),
        "video_vae": demo_sizes.video_vae("diffusers", latents),
        "audio_vae": demo_sizes.audio_vae("diffusers", sound),
    }


def write_projections(denoiser: Denoiser, file: Path) -> int:
    """The modulation network as a checkpoint in the original layout; returns its bytes."""
    names = {e.target: e.sources[0] for e in key_map(denoiser.config, "original").entries}
    state = {n: v for n, v in denoiser.state_dict().items() if n.startswith("modulation.")}
    kinds = {torch.bfloat16: "BF16", torch.float32: "F32"}
    header, at = {}, 0
    for name, value in state.items():
        span = [at, at + value.nbytes]
        header[names[name]] = {"dtype": kinds[value.dtype], "shape": list(value.shape), "data_offsets": span}
        at += value.nbytes
    head = json.dumps(header).encode()
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, len(head).to_bytes(8, "little") + head, 0)

    def write(name: str) -> None:
        data = state[name].cpu().view(torch.uint8).flatten().numpy().data
        start = 8 + len(head) + header[names[name]]["data_offsets"][0]
        for done in range(0, len(data), 2**26):
            os.pwrite(handle, data[done : done + 2**26], start + done)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, state))
    os.close(handle)
    return at


def link_rate(run: Run) -> float:
    """GB/s of pinned host memory to the device."""
    size = 2**20 if run.tiny else 2**30
    host, there = buffers.host_buffer(size, pinned=not run.tiny), buffers.device_buffer(size, run.device)
    there.copy_(host)
    return round(4 * size / run.seconds(lambda: [there.copy_(host, non_blocking=True) for _ in range(4)]) / 1e9, 2)


def read_rate(run: Run, projections: Projections) -> float:
    """GB/s of the reader from the page cache into host memory."""
    stored = [t for n, t in projections.index.tensors.items() if n.endswith("adaln_proj.linear.weight")][:2]
    target = buffers.host_buffer(max(t.num_bytes for t in stored), pinned=not run.tiny)
    reader = RawReader()
    reader.read([(stored[0], target)])
    rate = stored[-1].num_bytes / run.seconds(lambda: reader.read([(stored[-1], target)])) / 1e9
    reader.close()
    return round(rate, 2)


class Tiers:
    """Builds AdaLN fronts over the written projections."""

    def __init__(self, run: Run, denoiser: Denoiser, folder: Path) -> None:
        self.run, self.denoiser, self.folder = run, denoiser, folder
        self.shape = TableShape.of(denoiser.config)
        self.projections = Projections(read_index(folder), key_map(denoiser.config, "original"), run.dtype)

    def make(self, *, pages: int, sidecars: Path | None = None) -> AdaLN:
        shape, device, dtype = self.shape, self.run.device, self.run.dtype
        origin = Origin("fl2va", self.projections.identity(), maker_of(device), shape, dtype)
        return AdaLN(
            self.denoiser.modulation,
            self.projections,
            slab=Slab(shape, SLOTS, limit=4 * SLOTS, device=device, dtype=dtype),
            pages=PageCache(shape, pages, device=device, dtype=dtype),
            sidecars=SidecarFolder(sidecars, origin, limit_bytes=8 * GIB) if sidecars else None,
        )


def tiers_part(run: Run, tiers: Tiers, found: Results, reference: Mapping[int, Modulation]) -> None:
    times = default_times("fl2va", (12.0, 3.0))
    front = tiers.make(pages=2 * SLOTS)
    found |= {"link_gb_s": link_rate(run), "page_cache_read_gb_s": read_rate(run, tiers.projections)}
    found["timesteps"] = sum(map(len, times))
    found["cold_prepare_s"] = run.seconds(lambda: front.prepare(times))
    found["rebuild_s"] = round(front.stats()["rebuild"]["seconds"], 3)
    found["rebuild_floor_link_s"] = round(front.stats()["rebuild"]["bytes"] / found["link_gb_s"] / 1e9, 3)
    found["rebuild_floor_read_s"] = round(front.stats()["rebuild"]["bytes"] / found["page_cache_read_gb_s"] / 1e9, 3)
    found["bits_equal_resident_projection"] = _same(front, times, reference)
    found["slab_hit_ms"] = round(1000 * min(run.seconds(lambda: front.prepare(times)) for _ in range(3)), 2)
    front.pages.settle()
    front.slab.clear()
    found["pages_s"] = run.seconds(lambda: front.prepare(times))
    moved = tiers.shape.values * run.dtype.itemsize * found["timesteps"]
    found["pages_floor_s"] = round(moved / found["link_gb_s"] / 1e9, 4)
    found["bits_equal_from_pages"] = _same(front, times, reference)
    kept = tiers.make(pages=0, sidecars=tiers.folder / "tables")
    found["prepare_and_write_sidecar_s"] = run.seconds(lambda: kept.prepare(times))
    found["rebuild_again_s"] = round(kept.stats()["rebuild"]["seconds"], 3)
    fresh = tiers.make(pages=0, sidecars=tiers.folder / "tables")
    found["sidecar_s"] = run.seconds(lambda: fresh.prepare(times))
    found["bits_equal_from_sidecar"] = _same(fresh, times, reference)
    found["sidecar_hits"] = fresh.stats()["sidecar"]["hits"]
    found["peak_gib"] = run.peak_gib()


def _same(front: AdaLN, times: list[np.ndarray], reference: Mapping[int, Modulation]) -> bool:
    with front.schedule(times) as ready:
        equal = True
        for step, expected in reference.items():
            slots = torch.from_numpy(ready.slots[step])
            rows = (3 * slots[:, None] + torch.arange(3)).flatten().to(front.slab.device)
            equal &= torch.equal(ready.modulation.blocks[:, rows], expected.blocks)
            equal &= torch.equal(ready.modulation.final[slots.to(front.slab.device)], expected.final)
        return equal


def body(run: Run, edge: int, seconds: float, steps: int, *, seed: int = 1) -> Results:
    target = {"short_edge": 64 if run.tiny else edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    return {"task": "t2va", "prompt": PROMPT, "target": target, "num_inference_steps": steps, "seed": seed}


def predicted(run: Run, engine: Engine, plan: Plan) -> Choice:
    work = work_of(plan, tile_bytes=tile_bytes(engine.video_vae.config), value_bytes=run.dtype.itemsize)
    return choose("resident", RELEASED_SIZES, work, Machine(*(1000 * GIB,) * 4))


def peaks_part(run: Run, engine: Engine, found: Results) -> None:
    """Everything resident but the projections: the plan's stages against the meter's."""
    for edge, seconds in ((256, 4.0), (768, 4.0), (512, 6.0)):
        meter = PeakMeter(run.device)
        meter.load_done()
        result = Generator(replace(engine, peaks=meter)).generate(body(run, edge, seconds, 1))
        guess = predicted(run, engine, result.plan)
        seen = {name: round(value / GIB, 2) for name, value in result.stats["peak_bytes"].items()}
        peak = max(1, meter.runtime_peak)
        found[f"{edge} {seconds:g} s"] = {
            "rows": result.plan.rows,
            "seconds": result.stats["seconds"],
            "predicted_gib": {name: round(value / GIB, 2) for name, value in guess.peaks.items()},
            "seen_gib": seen,
            "predicted_over_seen": round(guess.peak / peak, 4),
        }


def mixed_part(run: Run, engine: Engine, found: Results) -> None:
    """Fifty requests of mixed shapes and schedules: what stays allocated behind each."""
    generator, rows = Generator(engine), []
    began = time.perf_counter()
    for number in range(6 if run.tiny else 50):
        edge, steps = (128, 192, 256)[number % 3], 1 + number % 2
        generator.generate(body(run, edge, 4.0 + number % 2, steps, seed=number))
        held = torch.cuda.memory_allocated() if run.device.type == "cuda" else 0
        reserved = torch.cuda.memory_reserved() if run.device.type == "cuda" else 0
        host = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        rows.append([number, held / GIB, reserved / GIB, host / GIB])
        if time.perf_counter() - began > 20:
            break
    table = np.round(np.array(rows), 3)
    third = max(1, len(table) // 3)
    found |= {
        "requests": len(table),
        "seconds": round(time.perf_counter() - began, 1),
        "columns": ["request", "device allocated GiB", "device reserved GiB", "host resident GiB"],
        "growth_first_to_last_third_gib": (table[-third:].mean(0) - table[third : 2 * third].mean(0))[1:].tolist(),
        "every_fifth": table[::5].tolist(),
        "encodings": engine.stats("t2va")["encodings"],
    }


class StepClock:
    """Device time between the progress reports of denoise steps."""

    def __init__(self, run: Run) -> None:
        self._run, self._marks = run, []

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "denoise" and progress.steps:
            mark = buffers.record(self._run.device)
            self._marks.append(time.perf_counter() if mark is None else mark)

    def steps_s(self) -> list[float]:
        self._run.sync()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [round(b - a if isinstance(a, float) else a.elapsed_time(b) / 1000, 3) for a, b in pairs]


@contextmanager
def timed_events() -> Iterator[None]:
    """Marks that carry a time, as long as the block lasts."""
    plain = buffers.record

    def record(device: torch.device) -> torch.cuda.Event | None:
        if device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    buffers.record = record
    try:
        yield
    finally:
        buffers.record = plain


def stream_part(run: Run, engine: Engine, cap_gib: float, found: Results) -> None:
    """5 s at 1344x768 resident, then with the device capped: same latents, step times, overlap."""
    request = body(run, 768, 5.0, 3)
    clock = StepClock(run)
    with timed_events():
        resident = Generator(engine).generate(request, on_progress=clock, keep=("latents",))
    found |= {"resident_steps_s": clock.steps_s(), "resident_seconds": resident.stats["seconds"]}
    cap = int(cap_gib * GIB)
    work = work_of(resident.plan, tile_bytes=tile_bytes(engine.video_vae.config), value_bytes=run.dtype.itemsize)
    choice = choose("stream", RELEASED_SIZES, work, Machine(cap, cap, 200 * GIB, 200 * GIB))
    blocks = len(engine.denoisers["fl2va"].transformer.blocks)
    staying = min(choice.resident_blocks, blocks - 2)
    found |= {"cap_gib": cap_gib, "blocks_that_stay": staying, "choice": choice.lines()}
    how = Streaming(resident_blocks=staying, cyclic=True)
    networks = [
        ("transformer", engine.denoisers["fl2va"], how),
        ("video_vae", engine.video_vae, None),
        ("audio_vae", engine.audio_vae, None),
    ]
    encodings = engine.encodings
    if found.setdefault("encoder_streams_too", run.spent < 0.6 * run.limit):
        networks.append(("text_encoder", engine.text_encoder, Streaming()))
        encodings = type(encodings)()
    else:  # the prompt was encoded above; its encoder is not needed again
        empty(engine.text_encoder)
    placements, pinned = {}, {}
    for name, network, stream in networks:
        began = time.perf_counter()
        placements[network] = from_host(network, name, device=run.device, stream=stream)
        pinned[name] = round(time.perf_counter() - began, 2)
    found["to_pinned_memory_s"] = pinned
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
        found["held_before_gib"] = round(torch.cuda.memory_allocated() / GIB, 2)
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(cap / total)
    meter = PeakMeter(run.device)
    meter.load_done()
    capped = replace(engine, placements=placements, peaks=meter, encodings=encodings)
    clock = StepClock(run)
    with timed_events():
        streamed = Generator(capped).generate(request, on_progress=clock, keep=("latents",))
    found |= {"stream_steps_s": clock.steps_s(), "stream_seconds": streamed.stats["seconds"]}
    found["runtime_peak_gib"] = round(meter.runtime_peak / GIB, 2)
    found["peaks_gib"] = {name: round(value / GIB, 2) for name, value in streamed.stats["peak_bytes"].items()}
    for name in ("final_video_latents", "final_audio_latents"):
        found[f"{name}_bits_equal"] = bool(np.array_equal(resident.kept[name], streamed.kept[name]))
    found["frames_equal"] = bool(np.array_equal(resident.video, streamed.video))
    moved = (blocks - staying) * RELEASED_SIZES["transformer"].block
    found["bytes_per_step_gb"] = round(moved / 1e9, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=260)
    parser.add_argument("--cap-gib", type=float, default=24)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    run = Run(args.out, limit=args.limit, tiny=args.tiny, only=args.only)
    folder = Path(tempfile.mkdtemp(prefix="h3-projections-"))
    try:
        measure_all(run, folder, args.cap_gib)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@torch.inference_mode()
def measure_all(run: Run, folder: Path, cap_gib: float) -> None:
    engine = synthetic_engine(run.device, dtype=run.dtype, configs=configs(run.tiny))
    denoiser = engine.denoisers["fl2va"]
    times = default_times("fl2va", (12.0, 3.0))
    reference = {s: denoiser.modulation(torch.from_numpy(times[s]).to(run.device)) for s in (0, 1, 25, 49)}
    file, size = folder / "model.safetensors", 0

    def write() -> None:
        nonlocal size
        size = write_projections(denoiser, file)

    seconds = run.seconds(write)
    run.results |= {"projections_gib": round(size / GIB, 2), "write_projections_s": seconds}
    for projection in projections_of(denoiser.modulation):
        empty(projection)
    assert all(p.is_meta for n, p in denoiser.named_parameters() if is_projection(n))
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    tiers = Tiers(run, denoiser, folder)
    run.part("adaln", lambda found: tiers_part(run, tiers, found, reference))
    engine = replace(engine, modulations={"fl2va": tiers.make(pages=2 * SLOTS)})
    for steps in (1, 2, 3):  # no request below computes tables
        engine.modulations["fl2va"].prepare(default_times("fl2va", (12.0, 3.0), steps))  # type: ignore[attr-defined]
    reference.clear()
    shutil.rmtree(folder)  # its page cache is needed for weights
    run.part("peaks", lambda found: peaks_part(run, engine, found))
    run.part("mixed", lambda found: mixed_part(run, engine, found))
    run.part("stream", lambda found: stream_part(run, engine, cap_gib, found))


if __name__ == "__main__":
    main()
