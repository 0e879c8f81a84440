"""Folder, hub id or demo; and the demo made once, however many ask."""

from __future__ import annotations

import multiprocessing
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from h3serve.core.errors import CheckpointError, OutputError, RequestError
from h3serve.weights import locate as module
from h3serve.weights.components import load_component
from h3serve.weights.locate import demo_folder, locate


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
    assert asked == [(("owner/name", "fl2va"), {"revision": "v1"})]


@pytest.mark.parametrize("model", ["nowhere", "./no/where", "no such", ""])
def test_nothing_of_that_name(model: str) -> None:
    with pytest.raises(CheckpointError, match="no folder, no hub id"):
        locate(model, "fl2va")


def test_revision_is_for_hub_ids(original: Path) -> None:
    for model in ("demo", str(original)):
        with pytest.raises(RequestError, match="revision: 'v1' .* only a hub id has revisions"):
            locate(model, "fl2va", revision="v1")


def test_demo_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = locate("demo", "fl2va", cache=tmp_path)
    monkeypatch.setattr(module, "write_demo_checkpoint", lambda _: pytest.fail("written twice"))
    assert locate("demo-random", "ref2va", cache=tmp_path).root == first.root


def make_and_load(cache: Path, start: Barrier, answers: Queue) -> None:
    start.wait()
    model = locate("demo-random", "fl2va", cache=cache)
    load_component(model, "transformer", "fl2va")
    answers.put(model.root)


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both get a whole checkpoint, one folder is left, and nothing temporary."""
    context = multiprocessing.get_context("fork")  # nothing to import anew
    start, answers = context.Barrier(2), context.Queue()
    running = [context.Process(target=make_and_load, args=(tmp_path, start, answers)) for _ in range(2)]
    for process in running:
        process.start()
    roots = [answers.get(timeout=120) for _ in running]
    for process in running:
        process.join()
    assert roots == list(tmp_path.iterdir()) * 2


def test_losing_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def beaten(folder: Path) -> None:
        folder.mkdir()
        raise OutputError("not empty")

    monkeypatch.setattr(module, "write_demo_checkpoint", beaten)
    assert demo_folder(tmp_path).is_dir()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="could not be written"):
        demo_folder(tmp_path / "cache")
