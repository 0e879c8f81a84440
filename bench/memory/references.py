"""Reference videos of 5 s and 15 s at 1344x768: what the plan says of every stage against the meter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import torch

from bench.memory.run import GIB, PROMPT, Results, Run, ready_engine
from bench.speed.timing import alternate
from h3serve.core import segments
from h3serve.core.estimate_memory import encoding_bytes, work_of
from h3serve.core.geometry import FPS, RELEASED_SIZES
from h3serve.models.quality import use_vae_quality
from h3serve.models.video_vae.tile_batches import tiles_of
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.pipeline.generator import Generator
from h3serve.runtime.machine import Machine
from h3serve.runtime.memory_meter import PeakMeter
from h3serve.runtime.offload.policy import RELEASED_SIZES as NETWORKS
from h3serve.runtime.offload.policy import choose
from h3serve.weights.demo.demo_sizes import SIZE_RULES

LENGTHS = (5.0, 15.0)  # seconds, of the reference and of what is made


def references_part(run: Run, found: Results) -> None:
    """One evaluation of each length, on a transformer for keyframes: its sizes are those of the one for references."""
    engine = ready_engine(run, steps=(1,))
    (denoiser,), (tiers,) = engine.denoisers.values(), engine.modulations.values()
    engine = replace(
        engine,
        denoisers={"ref2va": denoiser},
        sigma_shifts={"ref2va": engine.sigma_shifts["fl2va"]},
        modulations={"ref2va": tiers},
        rules=SIZE_RULES if run.tiny else RELEASED_SIZES,
    )
    for seconds in LENGTHS:
        meter = PeakMeter(run.device)
        meter.load_done()
        result = Generator(replace(engine, peaks=meter)).generate(_body(run, seconds))
        work, seen = work_of(result.plan, tiles=tiles_of(engine.video_vae)), result.stats["peak_bytes"]
        guess = choose("resident", NETWORKS, work, Machine(*(1000 * GIB,) * 4))
        found[f"{seconds:g} s"] = {
            "rows": result.plan.rows,
            "seconds": result.stats["seconds"],
            "planned_gib": {name: round(value / GIB, 2) for name, value in guess.peaks.items()},
            "seen_gib": {name: round(value / GIB, 2) for name, value in seen.items()},
            "planned_over_seen": {n: round(guess.peaks[n] / seen[n], 4) for n in guess.peaks if seen.get(n)},
            "planned_work_gib": {name: round(value / GIB, 2) for name, value in work.stages.items()},
        }
        run.write()
    found["tiles_at_once"] = [engine.video_vae.encode_tile_batch, engine.video_vae.tile_batch]
    found["5 s, torch's own kernels"] = _plain(run, engine.video_vae)


def _plain(run: Run, vae: VideoVAE) -> Results:
    """The encoder as cards without our kernels run it, one tile at a time: bytes beside the weights."""
    width, height = (96, 64) if run.tiny else (1344, 768)
    use_vae_quality(vae, "exact", run.device)
    frames = torch.randint(0, 256, (124, height, width, 3), dtype=torch.uint8)
    (timing,) = alternate(
        {"encode": lambda: vae.encode_frames(frames)}, rounds=1, device=run.device, warm_up=False
    ).values()
    planned = encoding_bytes(segments.video((width, height), len(frames), 0), tiles_of(vae))
    return {
        "seconds": round(timing.median, 2),
        "planned_gib": round(planned / GIB, 2),
        "seen_gib": round(timing.peak_bytes / GIB, 2),
    }


def _body(run: Run, seconds: float) -> Results:
    size, edge = ((96, 64), 64) if run.tiny else ((1344, 768), 768)
    target = {"short_edge": edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    reference = {"type": "video", "role": "reference", "uri": str(_video(run, size, round(seconds * 24)))}
    return {
        "task": "ref2va",
        "prompt": PROMPT,
        "conditions": [reference],
        "target": target,
        "num_inference_steps": 1,
        "seed": 1,
    }


def _video(run: Run, size: tuple[int, int], frames: int) -> Path:
    """A ramp that moves; silent, as the schedule is that `ready_engine` has tables of."""
    file, (width, height) = run.out / f"reference_{frames}.mp4", size
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    picture = np.stack([np.broadcast_to(np.roll(ramp, shift), (height, width)) for shift in (0, 40, 80)], axis=2)
    with av.open(str(file), "w") as box:
        stream = box.add_stream("libx264", rate=FPS, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            box.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(picture, number, axis=1), "rgb24")))
        box.mux(stream.encode(None))
    return file
