"""A checkpoint on disk, wherever its weights live: the same bits on a GPU; and new weights for each of these."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from h3serve import Generator
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.runtime.machine import Machine, measure
from h3serve.runtime.offload import policy
from tests.checkpoints import write_old_and_new

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
DEVICE = "cuda"
TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_old_and_new(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def request_body(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("media") / "first.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    first = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": str(path)}
    body = {"task": "fl2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 3, "seed": 3}
    return {**body, "conditions": [first]}


@pytest.fixture(scope="module")
def resident(folders: tuple[Path, Path], request_body: dict[str, Any]) -> dict[str, GenerationResult]:
    old, new = (Generator.from_pretrained(folder, device=DEVICE, residency="resident") for folder in folders)
    before = old.generate(request_body)
    mixed = replace(old.engine, denoisers=new.engine.denoisers, modulations=new.engine.modulations, placements={})
    return {"old": before, "new": Generator(mixed).generate(request_body)}


def same(a: GenerationResult, b: GenerationResult) -> bool:
    return np.array_equal(a.video, b.video) and np.array_equal(a.audio, b.audio)


@pytest.mark.parametrize("in_files", [False, True], ids=["host", "files"])
@pytest.mark.parametrize("residency", ["offload", "stream"])
def test_same_bits_as_resident_before_and_after_an_update(
    folders: tuple[Path, Path],
    request_body: dict[str, Any],
    resident: dict[str, GenerationResult],
    residency: str,
    in_files: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if in_files:  # a host with next to no memory of its own

        def little(device: torch.device) -> Machine:
            return replace(measure(device), host_bytes=2**20, host_free=2**20)

        monkeypatch.setattr(policy, "measure", little)
    generator = Generator.from_pretrained(folders[0], device=DEVICE, residency=residency)
    assert generator.engine.choice is not None and generator.engine.choice.in_files == in_files
    for _ in range(2):
        assert same(generator.generate(request_body), resident["old"])
    generator.update_weights(folders[1])
    for _ in range(2):
        assert same(generator.generate(request_body), resident["new"])


def test_an_update_of_resident_weights(
    folders: tuple[Path, Path], request_body: dict[str, Any], resident: dict[str, GenerationResult]
) -> None:
    generator = Generator.from_pretrained(folders[0], device=DEVICE, residency="resident")
    generator.generate(request_body)
    generator.update_weights(folders[1])
    assert same(generator.generate(request_body), resident["new"])
    held = torch.cuda.memory_allocated()
    for folder in (folders[0], folders[1]) * 3:
        generator.update_weights(folder)
    assert same(generator.generate(request_body), resident["new"])
    assert torch.cuda.memory_allocated() <= held + 2**20, "updates keep memory"
