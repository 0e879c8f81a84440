"""A whole request with random weights: seconds and memory peak of every stage, to the finished MP4."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import Figure, Report, machine
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generator import Generator

# What the stages are added up to: everything but the evaluations.
DENOISE = "denoise"


def bench_request(engine: Engine, *, target: Mapping[str, Any], evaluations: int, prompt: str, output: Path) -> Report:
    """One request to warm up, one that counts. Random weights make noise, the worst case of the MP4 encoder.

    The first one's prompt is another one, so that the second one's text is encoded and not found.
    """
    request = {"task": "t2va", "prompt": prompt, "target": dict(target), "num_inference_steps": evaluations}
    generator = Generator(engine)
    generator.generate({**request, "num_inference_steps": 1, "prompt": prompt.swapcase()}, output=output)
    began = time.perf_counter()
    result = generator.generate(request, output=output)
    wall = time.perf_counter() - began
    seconds, peaks = result.stats["seconds"], result.stats["peak_bytes"]
    width, height = result.plan.canvas
    size = f"{width}x{height}, {result.plan.frames} frames, {evaluations} evaluations"
    facts = {**machine(engine.device), "tier": engine.quality, "rows": result.plan.rows, "peaks": "with the weights"}
    report = Report(f"Request, {size}, {engine.quality}", facts)
    report.figures += [Figure(name, value, peak_bytes=peaks.get(name)) for name, value in seconds.items()]
    report.figures.append(Figure("one evaluation", seconds[DENOISE] / evaluations))
    report.figures.append(Figure("all but the evaluations", wall - seconds[DENOISE]))
    report.figures.append(Figure("to the finished MP4", wall, peak_bytes=max(peaks.values(), default=None)))
    return report
