"""Everything resident but the projections: what the plan predicts of each stage against the meter."""

from __future__ import annotations

from dataclasses import replace

from bench.memory.run import GIB, Results, Run, body, ready_engine
from h3serve.core.estimate_memory import work_of
from h3serve.models.video_vae.tile_batches import tiles_of
from h3serve.pipeline.generator import Generator
from h3serve.runtime.machine import Machine
from h3serve.runtime.memory_meter import PeakMeter
from h3serve.runtime.offload.policy import RELEASED_SIZES, choose

SHAPES = ((256, 4.0), (768, 4.0), (512, 6.0))


def peaks_part(run: Run, found: Results) -> None:
    """Three shapes, one evaluation each, with a keyframe: every stage works."""
    engine = ready_engine(run, steps=(1,))
    for edge, seconds in SHAPES:
        meter = PeakMeter(run.device)
        meter.load_done()
        result = Generator(replace(engine, peaks=meter)).generate(body(run, edge, seconds, 1, keyframe=True))
        work = work_of(result.plan, tiles=tiles_of(engine.video_vae))
        guess = choose("resident", RELEASED_SIZES, work, Machine(*(1000 * GIB,) * 4))
        found[f"{edge} {seconds:g} s"] = {
            "rows": result.plan.rows,
            "seconds": result.stats["seconds"],
            "predicted_gib": {name: round(value / GIB, 2) for name, value in guess.peaks.items()},
            "seen_gib": {name: round(value / GIB, 2) for name, value in result.stats["peak_bytes"].items()},
            "predicted_over_seen": round(guess.peak / max(1, meter.runtime_peak), 4),
        }
        run.write()
    found["tiles_at_once"] = [engine.video_vae.encode_tile_batch, engine.video_vae.tile_batch]
