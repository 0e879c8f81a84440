"""The trained demo that comes with the package: small, whole, and it makes what it is asked for."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from demo.detect import see
from demo.evaluation.makers import Clip, Engine
from demo.evaluation.rows import ROWS, cases
from h3serve import Generator
from h3serve.cli.serve import DEMO_ADAPTERS
from h3serve.weights.demo.demo_trained import CONFIG, TRAINED
from h3serve.weights.formats.inspection import inspect_model
from h3serve.weights.locate import locate

ROOT = Path(__file__).parent.parent.parent
CASE = next(cases(ROWS["t2va"], 1))  # 64x64, 4 s, a prompt that training has not seen


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with closing(Generator.from_pretrained("demo", device="cpu", partition="both")) as generator:
        yield Engine(generator)


@pytest.fixture(scope="module")
def clip(engine: Engine) -> Clip:
    return engine.make(CASE, 20)


def test_it_is_small_and_its_manifest_names_every_file() -> None:
    files = {file.name: file.stat().st_size for file in TRAINED.iterdir()}
    assert sum(files.values()) <= 40_000_000
    assert set(json.loads((TRAINED / CONFIG).read_text())["files"]) == set(files) - {CONFIG}


def test_every_file_goes_into_the_wheel() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["h3serve"]
    assert all(any(file.match(pattern) for pattern in package) for file in TRAINED.iterdir())


def test_the_canary_finds_nothing() -> None:
    assert inspect_model(locate("demo")).verdict == "ok"


def test_a_clip_has_what_its_prompt_says(clip: Clip) -> None:
    scene, seen = CASE.example.scene, see(clip[0])
    assert (seen.background, seen.colours) == (scene.background, tuple(thing.colour for thing in scene.things))


def test_the_teal_adapter_makes_what_the_checkpoint_never_saw(clip: Clip) -> None:
    """Where it is asked for; where it is not, the ground is the prompt's."""
    teal = str(DEMO_ADAPTERS / "teal.safetensors")
    with closing(Generator.from_pretrained("demo", device="cpu")) as generator:
        engine = Engine(generator, [teal])
        asked = next(cases(ROWS["teal"], 1))
        assert see(engine.make(asked, 8)[0]).background == "teal"
        assert see(engine.make(CASE, 8)[0]).background == CASE.example.scene.background
    assert sum(file.stat().st_size for file in DEMO_ADAPTERS.iterdir()) <= 1_000_000


def test_a_clip_is_the_same_twice(engine: Engine, clip: Clip) -> None:
    engine.generator.forget()
    video, audio = engine.make(CASE, 20)
    assert np.array_equal(video, clip[0]) and np.array_equal(audio, clip[1])
