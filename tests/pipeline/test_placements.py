"""A checkpoint on disk in the dtypes of a GPU: the same bits wherever its weights live, whatever is done to them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3serve import Generator
from h3serve.cli.main import run
from h3serve.core.errors import CapacityError
from h3serve.pipeline.generation_result import GenerationResult
from h3serve.runtime import loading
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload import policy
from tests.checkpoints import write_old_and_new

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}
PLACES = ["resident", "offload", "offload from files", "stream", "stream from files"]
HOW: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16"}
LITTLE = Machine(2**40, 2**40, 2**20, 2**20)  # a host with next to no memory of its own, but a good page cache


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_old_and_new(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def expected(folders: tuple[Path, Path]) -> dict[str, GenerationResult]:
    """From resident weights, and from the new transformer beside the old encoder and VAEs."""
    old, new = (Generator.from_pretrained(folder, residency="resident", **HOW) for folder in folders)
    before = old.generate(REQUEST)
    mixed = replace(old.engine, denoisers=new.engine.denoisers, modulations=new.engine.modulations, placements={})
    return {"old": before, "new": Generator(mixed).generate(REQUEST)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where even a small model keeps sidecars."""
    monkeypatch.setattr(loading, "SMALL", 0)
    return tmp_path / "cache"


def load(folder: Path, place: str, patch: pytest.MonkeyPatch, **how: Any) -> Generator:
    residency, _, files = place.partition(" ")
    if files:
        patch.setattr(policy, "measure", lambda device: LITTLE)
    return Generator.from_pretrained(folder, residency=residency, **HOW, **how)


def same(a: GenerationResult, b: GenerationResult) -> bool:
    return np.array_equal(a.video, b.video) and np.array_equal(a.audio, b.audio)


@pytest.mark.parametrize("place", PLACES)
def test_same_bits_from_every_tier_and_after_an_update(
    folders: tuple[Path, Path],
    expected: dict[str, GenerationResult],
    place: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = load(folders[0], place, monkeypatch, cache=str(cache))
    transformer = generator.engine.denoisers["fl2va"].transformer
    assert transformer.compute_dtype == torch.bfloat16, "known before the weights are there"
    assert same(generator.generate(REQUEST), expected["old"])  # computed anew
    later = load(folders[0], place, monkeypatch, cache=str(cache))
    result = later.generate(REQUEST)  # from the sidecar
    assert result.stats["modulation"]["sidecar"]["hits"] == 2 and result.stats["modulation"]["rebuild"]["hits"] == 0
    assert same(result, expected["old"])
    later.update_weights(folders[1])
    assert same(later.generate(REQUEST), expected["new"])


@pytest.mark.parametrize("place", ["resident", "stream", "stream from files"])
def test_sidecars_of_the_command_line_are_used(
    folders: tuple[Path, Path], place: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--device", "cpu", "--dtype", "bfloat16", "--cache", str(cache)]
    assert run(["adaln", "build", "--model", str(folders[0]), *options]) == 0
    engine = load(folders[0], place, monkeypatch, cache=str(cache)).engine
    engine.prepare()
    stats = engine.stats("t2va")["modulation"]
    assert stats["rebuild"]["hits"] == 0 and stats["sidecar"]["hits"] == 50


@pytest.mark.parametrize("place", ["offload", "stream"])
def test_8_bits_move_too(folders: tuple[Path, Path], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [load(folders[0], where, monkeypatch, quantize="fp8").generate(REQUEST) for where in ("resident", place)]
    assert same(*results)


def test_8_bits_do_not_stay_in_files(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapacityError, match="kept in host memory"):
        load(folders[0], "stream from files", monkeypatch, quantize="fp8")
