"""A weight update by its name: what it is checked for before a byte, and all ranks or none."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3serve import Generator
from h3serve.core.errors import CheckpointError, RequestError, WorkerError
from h3serve.core.request import parse_request
from h3serve.core.settings import EngineSettings
from h3serve.pipeline.engine import Engine, load_engine
from h3serve.pipeline.replica import Member
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.sharding import RankShare
from tests.checkpoints import write_old_and_new
from tests.rank_pool import Pool, pool

TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
REQUEST: dict[str, Any] = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    write_old_and_new(root)
    shutil.copytree(root / "new", root / "shifted")
    index = root / "shifted" / "FL2VA" / "model_index.json"
    index.write_text(index.read_text().replace("12.0", "11.0"))
    return root


@pytest.fixture(scope="module")
def latents(root: Path) -> dict[str, Any]:
    old, new = (Generator.from_pretrained(root / name, device="cpu") for name in ("old", "new"))
    mixed = replace(old.engine, denoisers=new.engine.denoisers, modulations=new.engine.modulations, placements={})
    return {"old": latents_of(old), "new": latents_of(Generator(mixed))}


def latents_of(generator: Generator) -> Any:
    return generator.generate(REQUEST, keep=("latents",)).kept.get("final_video_latents")


def sample_of(generator: Generator) -> str:
    """What its MP4 files say of the weights."""
    text = generator.engine.record(parse_request(REQUEST))
    assert text is not None
    return str(json.loads(text)["checkpoint"]["sample"])


def test_by_folder_and_only_checked(root: Path, latents: dict[str, Any]) -> None:
    generator = Generator.from_pretrained(root / "old", device="cpu")
    before = sample_of(generator)
    checked = generator.update_weights(root / "new", only_check=True)
    assert sample_of(generator) == before
    assert checked["dropped"] == {} and np.array_equal(latents_of(generator), latents["old"])
    made = generator.update_weights(root / "new", partition="fl2va")
    assert sample_of(generator) == sample_of(Generator.from_pretrained(root / "new", device="cpu")) != before
    assert made["dropped"]["slab_keys"] > 0 and made["partition"] == "fl2va"
    assert np.array_equal(latents_of(generator), latents["new"])


def test_refused_by_what_the_caller_said(root: Path, latents: dict[str, Any]) -> None:
    assert json.loads((root / "shifted" / "FL2VA" / "model_index.json").read_text())
    generator = Generator.from_pretrained(root / "old", device="cpu")
    with pytest.raises(RequestError, match="loaded are the weights of fl2va"):
        generator.update_weights(root / "new", partition="ref2va")
    with pytest.raises(CheckpointError, match="is not a folder"):
        generator.update_weights(root / "nothing")
    with pytest.raises(CheckpointError, match=r"sigma shifts are \(11.0, 3.0\)"):
        generator.update_weights(root / "shifted")
    assert np.array_equal(latents_of(generator), latents["old"])


def test_modulation_that_cannot_be_computed_is_no_refusal(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Engine) -> None:
        raise OSError("the disk is gone")

    generator = Generator.from_pretrained(root / "old", device="cpu")
    monkeypatch.setattr(Engine, "prepare", failing)
    with pytest.raises(WorkerError, match="not their modulation: the disk is gone"):
        generator.update_weights(root / "new")


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["ulysses", "tp"])
def ranks(request: pytest.FixtureRequest, root: Path) -> Iterator[Pool]:
    with pool(*request.param) as processes:
        processes.run(_load, str(root / "old"), timeout=60)
        yield processes


def _load(ranks: Ranks, model: str) -> None:
    settings = EngineSettings(model=model, device="cpu", tp=ranks.tp.size)
    ranks.generator = Generator(load_engine(settings, RankShare(ranks)), replica=Member(ranks))


def _update(ranks: Ranks, sources: list[str]) -> Any:
    try:
        return ranks.generator.update_weights(sources[ranks.rank])
    except Exception as error:
        return error


def _ways(ranks: Ranks) -> int:
    return ranks.tp.size


def _latents(ranks: Ranks) -> Any:
    return latents_of(ranks.generator)


def test_all_ranks_or_none(ranks: Pool, root: Path, latents: dict[str, Any]) -> None:
    new = str(root / "new")
    for answer in ranks.run(_update, [new, str(root / "shifted")], timeout=60):  # the second rank refuses
        assert isinstance(answer, (CheckpointError, RequestError)), answer
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(ranks.run(_latents, timeout=60)[0], latents["old"], **close)
    answers, divided = ranks.run(_update, [new, new], timeout=60), ranks.run(_ways, timeout=60)[0] > 1
    if divided:
        assert all("start anew" in str(answer) for answer in answers), answers
    else:
        assert all(answer["dropped"]["slab_keys"] for answer in answers), answers
    made = ranks.run(_latents, timeout=60)[0]
    np.testing.assert_allclose(made, latents["old" if divided else "new"], **close)


def test_the_other_process_is_told(root: Path, latents: dict[str, Any]) -> None:
    generator = Generator.from_pretrained(root / "old", device="cpu", gpus=2, tp=1)
    try:
        with pytest.raises(CheckpointError, match="sigma shifts"):
            generator.update_weights(root / "shifted")
        np.testing.assert_allclose(latents_of(generator), latents["old"], rtol=0, atol=1e-5)
        generator.update_weights(root / "new")
        np.testing.assert_allclose(latents_of(generator), latents["new"], rtol=0, atol=1e-5)
    finally:
        generator.close()
