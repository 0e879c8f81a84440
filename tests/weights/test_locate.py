"""Folder, hub id or demo; and each demo made once, however many ask."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from h3serve.core.errors import CheckpointError, OutputError, RequestError
from h3serve.core.model_name import DEMOS
from h3serve.weights import locate as module
from h3serve.weights.demo.demo_trained import CONFIG, TRAINED
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import load_component
from h3serve.weights.formats.opened_component import open_component
from h3serve.weights.locate import demo_folder, locate

WRITERS = {"demo": "write_trained_checkpoint", "demo-random": "write_demo_checkpoint"}


def test_a_folder(original: Path) -> None:
    assert locate(str(original), "ref2va").root == original
    with pytest.raises(CheckpointError, match="holds the fl2va weights only"):
        locate(str(original / "FL2VA"), "ref2va")


def test_a_folder_that_looks_like_a_hub_id(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "download", lambda *a, **k: pytest.fail("fetched"))
    monkeypatch.chdir(original.parent.parent)
    assert locate(f"{original.parent.name}/original", "fl2va").layout == "original"


def test_a_hub_id(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(*args: object, **kwargs: object) -> Path:
        asked.append((args, kwargs))
        return original

    monkeypatch.setattr(module, "download", download)
    assert locate("owner/name", "fl2va", revision="v1").root == original
    assert asked == [(("owner/name", "fl2va"), {"revision": "v1", "cache": None})]


@pytest.mark.parametrize("model", ["nowhere", "./no/where", "no such", ""])
def test_nothing_of_that_name(model: str) -> None:
    with pytest.raises(CheckpointError, match="no folder, no hub id"):
        locate(model, "fl2va")


def test_revision_is_for_hub_ids(original: Path) -> None:
    for model in (*DEMOS, str(original)):
        with pytest.raises(RequestError, match="revision: 'v1' .* only a hub id has revisions"):
            locate(model, "fl2va", revision="v1")


@pytest.mark.parametrize("demo", DEMOS)
def test_a_demo_is_made_once(demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = locate(demo, "fl2va", cache=tmp_path)
    for writer in WRITERS.values():
        monkeypatch.setattr(module, writer, lambda *_: pytest.fail("written twice"))
    assert locate(demo, "ref2va", cache=tmp_path).root == first.root
    assert [folder.name.rpartition("-")[0] for folder in tmp_path.iterdir()] == [demo]


def test_every_network_of_the_two_demos_differs(tmp_path: Path) -> None:
    """In size, too: nothing that is measured of one is of the other."""
    trained, random = (locate(demo, "fl2va", cache=tmp_path) for demo in ("demo", "demo-random"))
    for name in RECIPES:
        assert trained.component(name, "fl2va").config != random.component(name, "fl2va").config


def test_old_demos_are_removed_when_a_new_one_is_made(tmp_path: Path) -> None:
    """Those of other versions that nobody asked for lately, and what killed writers left; nothing else."""
    old, lately, other, left = "demo-random-0123456789ab", "demo-random-ba9876543210", "demo-0123456789ab", "adaln"
    hidden = [f".{old[:-1]}c.x_1y2z", f".{old[:-1]}d.old"]
    mine = ["demo-random-mine", "0123456789ab", "demo-random-0123456789abc"]
    for name in (old, lately, other, left, *hidden, *mine):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
        days = 13 if name == lately else 15
        os.utime(tmp_path / name, (time.time() - days * 86400,) * 2)
    made = demo_folder("demo-random", tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {made.name, lately, other, left, *mine}
    os.utime(made, (1, 1))
    assert demo_folder("demo-random", tmp_path) == made
    assert made.stat().st_mtime > time.time() - 3600, "asking for a demo keeps it from being old"


def test_a_cache_is_all_that_is_written_to(tmp_path: Path) -> None:
    """A home that cannot be written, or is not known, is no matter where a cache is named."""
    script = (
        "import sys; from h3serve import Generator; from h3serve.cli.main import run; "
        "generator = Generator.from_pretrained('demo-random', device='cpu', cache=sys.argv[1]); "
        "assert str(generator.engine.cache) == sys.argv[1]; "
        "sys.exit(run(['inspect', 'demo-random', '--cache', sys.argv[1]]))"
    )
    environment = {**os.environ, "HOME": "/dev/null/none"}
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "kept")], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0 and "verdict: ok" in ran.stdout, ran.stderr
    assert [folder.name.rpartition("-")[0] for folder in (tmp_path / "kept").iterdir()] == ["demo-random"]


def make_and_load(demo: str, cache: Path, start: Barrier, answers: Queue) -> None:
    start.wait()
    model = locate(demo, "fl2va", cache=cache)
    load_component(open_component(model, "transformer", "fl2va"))
    answers.put(model.root)


@pytest.mark.parametrize("demo", DEMOS)
def test_two_processes_at_once(demo: str, tmp_path: Path) -> None:
    """Both get a whole checkpoint, one folder is left, and nothing temporary."""
    context = multiprocessing.get_context("fork")  # nothing to import anew
    start, answers = context.Barrier(2), context.Queue()
    running = [context.Process(target=make_and_load, args=(demo, tmp_path, start, answers)) for _ in range(2)]
    for process in running:
        process.start()
    roots = [answers.get(timeout=120) for _ in running]
    for process in running:
        process.join()
    assert roots == list(tmp_path.iterdir()) * 2


@pytest.mark.parametrize("demo", DEMOS)
def test_losing_the_race(demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def beaten(folder: Path, *_: object) -> None:
        folder.mkdir()
        raise OutputError("not empty")

    monkeypatch.setattr(module, WRITERS[demo], beaten)
    assert demo_folder(demo, tmp_path).is_dir()


@pytest.mark.parametrize("demo", DEMOS)
def test_a_cache_that_cannot_be_written(demo: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="could not be written"):
        demo_folder(demo, tmp_path / "cache")


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packed weights, to be changed, which `locate` takes for the package's."""
    folder = shutil.copytree(TRAINED, tmp_path / "packed")
    monkeypatch.setattr(module, "TRAINED", folder)
    return folder


def test_other_weights_make_another_demo(packed: Path, tmp_path: Path) -> None:
    before = [demo_folder(demo, tmp_path / "cache") for demo in DEMOS]
    manifest = json.loads((packed / CONFIG).read_text())
    (packed / CONFIG).write_text(json.dumps({**manifest, "made": "anew"}))
    after = [demo_folder(demo, tmp_path / "cache") for demo in DEMOS]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True]


def test_a_damaged_package_leaves_nothing(packed: Path, tmp_path: Path) -> None:
    with (packed / "video_vae.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match="is not what was packed"):
        locate("demo", "fl2va", cache=tmp_path / "cache")
    (packed / CONFIG).unlink()
    with pytest.raises(CheckpointError, match="config.json is missing"):
        locate("demo", "fl2va", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
