"""Traces of a generation: what is in them, and that nothing is left of them afterwards."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3serve.core.errors import Cancelled
from h3serve.pipeline.generation_progress import STAGES, Progress
from h3serve.pipeline.generator import Generator
from h3serve.pipeline.profile import profiled
from tests.pipeline.small_engine import small_engine

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(small_engine())


def hooks(generator: Generator) -> int:
    networks = (generator.engine.denoiser("t2va"), generator.engine.text_encoder, generator.engine.video_vae)
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for n in networks for m in n.modules())


def spans_of(file: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [event for event in json.loads(text)["traceEvents"] if event.get("cat") == "user_annotation"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_span_for_every_stage_step_and_block(generator: Generator, tmp_path: Path, name: str) -> None:
    before, reports = hooks(generator), []
    request = {**REQUEST, "prompt": name}  # a text that was not encoded before
    with profiled(generator.engine, tmp_path / name, reports.append) as watch:
        result = generator.generate(request, on_progress=watch)
    plain = generator.generate(request)
    assert np.array_equal(result.video, plain.video) and np.array_equal(result.audio, plain.audio)
    assert hooks(generator) == before and {report.stage for report in reports} == set(STAGES)
    assert [path.name for path in tmp_path.iterdir()] == [name]

    spans = spans_of(tmp_path / name)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_name.setdefault(span["name"], []).append(span)
    assert set(STAGES) <= set(by_name)
    blocks = len(generator.engine.denoiser("t2va").transformer.blocks)
    assert all(len(by_name[f"transformer block {i}"]) == 2 for i in range(blocks))
    assert {"text_encoder block 0", "video_vae block 0"} <= set(by_name)
    (denoise,), steps = by_name["denoise"], [by_name[f"step {i} of 2"][0] for i in (1, 2)]
    assert all(inside(step, denoise) for step in steps)
    assert [sum(inside(block, step) for block in by_name["transformer block 0"]) for step in steps] == [1, 1]
    assert not any(inside(step, other) for step in steps for other in by_name["decode video"])


def inside(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return other["ts"] <= one["ts"] and one["ts"] + one["dur"] <= other["ts"] + other["dur"]


def test_a_generation_that_is_stopped_leaves_neither_trace_nor_hooks(generator: Generator, tmp_path: Path) -> None:
    before = hooks(generator)

    def stop(progress: Progress) -> None:
        if progress.step == 1:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled), profiled(generator.engine, tmp_path / "t.json", stop) as watch:
        generator.generate(REQUEST, on_progress=watch)
    assert hooks(generator) == before and not list(tmp_path.iterdir())
