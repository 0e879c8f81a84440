"""What all parts share: the device, the clock, results so far, and an engine with random weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.synthetic_engine import synthetic_engine
from h3serve.core.estimate_memory import SLOTS
from h3serve.models.module_tensors import empty
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.schedule import default_times
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.device_slab import Slab
from h3serve.runtime.adaln.host_pages import PageCache
from h3serve.runtime.adaln.modulation_tables import TableShape, distinct, key_of, timesteps_of
from h3serve.runtime.adaln.rebuild import projections_of
from h3serve.weights.demo import demo_sizes
from h3serve.weights.demo.demo_tokenizer import build_tokenizer
from h3serve.weights.formats.released_sizes import RELEASED

GIB = 2**30
SHIFTS = (12.0, 3.0)
PROMPT = "A red fox trots through a snowy forest while the wind rises and snow crunches underfoot. " * 6
Results = dict[str, Any]
Mark = torch.cuda.Event | float


class Run:
    """One call of the benchmark; every part's figures are in the file as soon as they are there."""

    def __init__(self, out: Path, *, limit: float, tiny: bool) -> None:
        self.out, self.tiny, self.limit = out, tiny, limit
        self.device = torch.device("cpu" if tiny else "cuda:0")
        self.dtype = torch.float32 if tiny else torch.bfloat16
        self._began = time.perf_counter()
        self.results: Results = {"torch": torch.__version__}
        if not tiny:
            self.results["device"] = torch.cuda.get_device_name()
        out.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, work: Callable[[Run, Results], None]) -> None:
        """One part's figures into the file, its failure too: the parts behind it still run."""
        found: Results = {}
        self.results[name] = found
        if self.spent > self.limit:
            found["left_out"] = f"{self.spent:.0f} s had gone by"
        else:
            try:
                work(self, found)
            except Exception as error:  # a figure less is better than none
                found["failed"] = f"{type(error).__name__}: {error}"
        self.results[f"{name}_done_at_s"] = round(self.spent, 1)
        self.write()
        print(name, json.dumps(found, indent=1), flush=True)

    def write(self) -> None:
        """All results so far."""
        (self.out / "memory.json").write_text(json.dumps(self.results, indent=1))

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def sync(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def mark(self) -> Mark:
        """A moment of the current stream; of the host on a CPU."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, work: Callable[[], object]) -> float:
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        return round(time.perf_counter() - began, 4)


def between(first: Mark, second: Mark) -> float:
    """Seconds between two marks that the device has reached."""
    if isinstance(first, float) or isinstance(second, float):
        assert isinstance(first, float) and isinstance(second, float)
        return second - first
    return float(first.elapsed_time(second)) / 1000


def body(run: Run, edge: int, seconds: float, steps: int, *, seed: int = 1, keyframe: bool = False) -> Results:
    """A request; with `keyframe` the video VAE encodes too."""
    target = {"short_edge": 64 if run.tiny else edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    request = {"task": "t2va", "prompt": PROMPT, "target": target, "num_inference_steps": steps, "seed": seed}
    if keyframe:
        request |= {
            "task": "fl2va",
            "conditions": [{"type": "image", "role": "keyframe", "uri": _picture(run), "frame_index": 0}],
        }
    return request


def _picture(run: Run) -> str:
    file = run.out / "keyframe.png"
    if not file.exists():
        ramp = np.linspace(0, 255, 336, dtype=np.uint8)
        rows = np.broadcast_to(ramp[:192, None], (192, 336))
        Image.fromarray(np.stack([rows, np.broadcast_to(ramp, (192, 336)), 255 - rows], 2)).save(file)
    return str(file)


def synthetic(run: Run) -> Engine:
    """An engine with random weights, AdaLN projections included."""
    return synthetic_engine(run.device, dtype=run.dtype, configs=configs(run.tiny))


def configs(tiny: bool) -> Mapping[str, Mapping[str, Any]]:
    if not tiny:
        return RELEASED
    return demo_sizes.networks(build_tokenizer().get_vocab(with_added_tokens=True))


def ready_engine(run: Run, steps: Iterable[int]) -> Engine:
    """The same without projections, as a loaded engine is; the slab holds what requests of so many steps need."""
    engine = synthetic(run)
    denoiser = engine.denoisers["fl2va"]
    # With a keyframe a step has the timesteps that a visual reference gives it.
    schedules = [default_times(kind, SHIFTS, count) for count in steps for kind in ("fl2va", "ref2va")]
    tiers = _filled(run, denoiser, [times for schedule in schedules for times in schedule])
    drop_projections(run, denoiser)
    return replace(engine, modulations={"fl2va": tiers})


def drop_projections(run: Run, denoiser: Denoiser) -> None:
    for projection in projections_of(denoiser.modulation):
        empty(projection)
    if run.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _filled(run: Run, denoiser: Denoiser, times: Sequence[np.ndarray]) -> AdaLN:
    shape, keys = TableShape.of(denoiser.config), distinct(map(key_of, times))
    slab = Slab(shape, SLOTS, limit=4 * SLOTS, device=run.device, dtype=run.dtype)
    with slab.using(keys), slab.filling(keys) as slots:
        for key in keys:
            made = denoiser.modulation(timesteps_of(key).to(run.device))
            for layer, tables in enumerate(made.blocks):
                slab.put_layer(slots[key], layer, tables)
            slab.put_layer(slots[key], None, made.final)
    pages = PageCache(shape, 0, device=run.device, dtype=run.dtype)
    nothing: Any = None  # a schedule that is not in the slab is a mistake here
    return AdaLN(denoiser.modulation, nothing, slab=slab, pages=pages, sidecars=None)
