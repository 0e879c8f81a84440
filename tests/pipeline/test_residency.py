"""Whole generations are bit-equal wherever the weights live; what was encoded before wakes no network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from h3serve import Generator
from h3serve.core.errors import Cancelled, CapacityError, RequestError
from h3serve.pipeline import engine as engine_module
from h3serve.pipeline.generation_progress import Progress
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload import policy
from h3serve.weights.demo.demo_random import write_demo_checkpoint

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
T2VA: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 3, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("media") / "first.png"
    pixels = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    condition = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": str(path)}
    return [T2VA, {**T2VA, "task": "fl2va", "conditions": [condition]}]


@pytest.fixture(scope="module")
def resident(folder: Path, requests: list[dict[str, Any]]) -> list[GenerationResult]:
    generator = Generator.from_pretrained(folder, device="cpu", residency="resident")
    return [generator.generate(request) for request in requests]


def same(a: GenerationResult, b: GenerationResult) -> bool:
    return np.array_equal(a.video, b.video) and np.array_equal(a.audio, b.audio)


@pytest.mark.parametrize("in_files", [False, True], ids=["host", "files"])
@pytest.mark.parametrize("residency", ["offload", "stream"])
def test_same_bits_as_resident(
    folder: Path,
    requests: list[dict[str, Any]],
    resident: list[GenerationResult],
    residency: str,
    in_files: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if in_files:  # a host with next to no memory of its own, but a good page cache
        monkeypatch.setattr(policy, "measure", lambda device: Machine(2**40, 2**40, 2**20, 2**20))
    generator = Generator.from_pretrained(folder, device="cpu", residency=residency)
    choice = generator.engine.choice
    assert choice is not None and choice.modes["transformer"] == residency and choice.in_files == in_files
    for request, expected in zip(requests, resident, strict=True):
        assert same(generator.generate(request), expected)
    assert all(p.is_meta for p in generator.engine.text_encoder.parameters())


def test_a_repeated_prompt_and_picture_wake_no_encoder(
    folder: Path, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Generator.from_pretrained(folder, device="cpu", residency="offload")
    first = generator.generate(requests[1])
    engine = generator.engine

    def asleep(*args: object, **kwargs: object) -> None:
        raise AssertionError("a network was woken for what it has encoded before")

    monkeypatch.setattr(engine.text_encoder, "encode", asleep)
    monkeypatch.setattr(engine.video_vae, "encode", asleep)
    assert same(generator.generate(requests[1]), first)
    with pytest.raises(AssertionError, match="woken"):
        generator.generate({**requests[1], "prompt": "snow"})


def test_each_request_keeps_as_many_blocks_as_it_leaves_room_for(
    folder: Path, requests: list[dict[str, Any]], resident: list[GenerationResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, seen = Generator.from_pretrained(folder, device="cpu", residency="stream"), []
    placement = generator.engine.placements[generator.engine.denoisers["fl2va"]]

    def look(progress: Progress) -> None:
        if progress.stage == "denoise" and progress.step:
            seen.append(len(placement._streamed._resident))  # type: ignore[attr-defined]

    for staying in (2, 0, 1):
        monkeypatch.setattr(engine_module, "resident_beside", lambda choice, work, adapters, staying=staying: staying)
        assert same(generator.generate(requests[1], on_progress=look), resident[1])
    assert seen == [2, 2, 2, 0, 0, 0, 1, 1, 1]


def test_the_default_schedule_is_prepared(folder: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.steps == 50:
            raise Cancelled("the loop has begun")

    generator = Generator.from_pretrained(folder, device="cpu")
    generator.engine.prepare()
    with pytest.raises(Cancelled):
        generator.generate({**T2VA, "num_inference_steps": 50}, on_progress=stop)
    stats = generator.engine.stats("t2va")["modulation"]
    assert stats["rebuild"]["hits"] == stats["slab"]["hits"] == 50


def test_no_projection_of_a_block_is_loaded(folder: Path) -> None:
    engine = Generator.from_pretrained(folder, device="cpu").engine
    blocks = engine.denoisers["fl2va"].modulation.blocks
    assert all(p.is_meta for p in blocks.parameters())


def test_an_unknown_residency_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"residency: 'cloud'.*auto, resident, offload or stream"):
        Generator.from_pretrained(folder, device="cpu", residency="cloud")


def test_what_does_not_fit_is_refused_before_it_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "measure", lambda device: Machine(2**30, 2**20, 2**40, 2**40))
    monkeypatch.setattr(engine_module, "place", lambda *a, **k: pytest.fail("something was loaded"))
    with pytest.raises(CapacityError, match="on the device"):
        Generator.from_pretrained(folder, device="cpu")


def test_stats_report_peaks_and_tiers(folder: Path) -> None:
    stats = Generator.from_pretrained(folder, device="cpu").generate(T2VA).stats
    assert stats["load_peak_bytes"] == stats["runtime_peak_bytes"] == 0
    assert stats["modulation"]["rebuild"]["hits"] == 3


def test_encodings_on_disk_wake_no_encoder_of_a_later_process(
    folder: Path,
    requests: list[dict[str, Any]],
    resident: list[GenerationResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how: dict[str, Any] = {"device": "cpu", "residency": "stream", "encodings_cache": str(tmp_path / "kept")}
    assert same(Generator.from_pretrained(folder, **how).generate(requests[1]), resident[1])
    later = Generator.from_pretrained(folder, **how)

    def asleep(*args: object) -> None:
        raise AssertionError("a network was woken for what lies on disk")

    monkeypatch.setattr(later.engine.text_encoder, "encode", asleep)
    monkeypatch.setattr(later.engine.video_vae, "encode", asleep)
    result = later.generate(requests[1])
    assert same(result, resident[1]) and result.stats["encodings"]["disk_hits"] == 2

    write_demo_checkpoint(tmp_path / "other", seed=7)
    other = Generator.from_pretrained(tmp_path / "other", **how).generate(requests[1])
    assert other.stats["encodings"]["disk_hits"] == 0 and len(list((tmp_path / "kept").iterdir())) == 2


def test_a_file_is_no_folder_for_encodings(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="a folder that can be written") as caught:
        Generator.from_pretrained(folder, device="cpu", encodings_cache=str(tmp_path / "file"))
    assert caught.value.field == "encodings_cache"
