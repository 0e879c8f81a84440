"""The evaluation: the same prompts every time, valid requests, runs that go on where they ended, a true table."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from demo import evaluate, look
from demo.evaluation.faults import FAULTS
from demo.evaluation.judge import fidelity, judge
from demo.evaluation.makers import Truth, truth
from demo.evaluation.requests import request_of
from demo.evaluation.rows import ROWS, Case, cases
from demo.evaluation.table import LINES, as_json, markdown
from h3serve.core.request import parse_request
from h3serve.pipeline.ingest import Ingest
from h3serve.weights.demo.demo_sizes import SIZE_RULES


def first(row: str, number: int = 0) -> Case:
    return list(cases(ROWS[row], number + 1))[number]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def call(*arguments: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["evaluate", "--cache", str(tmp_path), *arguments])
        evaluate.main()
        return tmp_path

    return call


@pytest.mark.parametrize("row", [name for name in ROWS if name != "vae"])
def test_cases_are_requests_for_their_own_canvas(row: str, tmp_path: Path) -> None:
    for number in range(len(ROWS[row].kinds)):
        case = first(row, number)
        request = parse_request(request_of(case, tmp_path, steps=2))
        plan, prepared = Ingest(SIZE_RULES).read(request)
        assert plan.canvas == case.example.scene.canvas and plan.frames == case.example.scene.frames
        assert len(prepared) == len(case.example.keyframes) + len(case.example.references)
        for item, reference in zip(prepared[len(case.example.keyframes) :], case.example.references, strict=True):
            assert item.segment.size in (None, reference.scene.canvas)
            if item.frames is not None:
                assert len(item.frames) == reference.scene.frames
            if item.wave is not None:
                assert item.wave.shape == (2, reference.scene.samples)


def test_no_example_is_left_unsaid_and_none_comes_twice() -> None:
    seeds = [case.seed for case in cases(ROWS["t2va"], 100)]
    assert len(set(seeds)) == 100 and all(seed % 10 != 9 for seed in seeds)


def test_a_clip_of_another_prompt_is_wrong() -> None:
    case, other = first("t2va", 0), first("t2va", 2)
    figures, _, _ = judge(case, *truth(other))
    assert sum(value < 1.0 for value in figures.values()) >= 3
    assert judge(first("continue"), *truth(first("continue", 2)))[0]["continued"] == 0.0
    assert judge(first("fl2va"), *truth(first("fl2va", 2)))[0]["given frames"] == 0.0


def test_late_sound_is_not_together() -> None:
    case = first("t2va")
    video, audio = truth(case)
    assert judge(case, video, np.roll(audio, 3200, axis=1))[0]["together"] == 0.0
    assert judge(case, video, np.zeros_like(audio))[0]["together"] == 0.0


def test_fidelity_falls_with_noise() -> None:
    case = first("vae")
    clean, poor = (fidelity(truth(case), *Truth(degraded=poor).make(case, 0)) for poor in (False, True))
    assert clean["psnr"] == 100.0 and clean["spectral similarity"] == pytest.approx(1.0)
    assert 25 < poor["psnr"] < 35 and poor["spectral similarity"] < 1.0


def test_a_run_goes_on_where_it_ended(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run("--model", "truth", "--rows", "t2va", "--count", "3", "--shard", "0/2", "--keep", "1")
    folder = run("--model", "truth", "--rows", "t2va", "--count", "3") / "truth-20" / "t2va"
    made = [line for line in capsys.readouterr().out.splitlines() if line.startswith("t2va")]
    assert [line.split()[1] for line in made] == ["0", "2", "1"]
    assert sorted(file.name for file in folder.glob("*.json")) == ["000.json", "001.json", "002.json"]
    assert json.loads((folder / "001.json").read_text())["colour"] == 1.0


def test_runs_beside_one_another(run: Any, tmp_path: Path) -> None:
    run("--model", "truth", "--rows", "t2va", "--count", "1")
    run("--model", "truth-degraded", "--rows", "t2va", "--count", "1")
    run("--show", "truth-20,truth-degraded-20", "--out", str(tmp_path / "table"))
    assert "| truth-20 | truth-degraded-20 |" in (tmp_path / "table.md").read_text()
    figures = json.loads((tmp_path / "table.json").read_text())
    assert figures["truth-20"]["T2VA: colour"]["value"] == 1.0
    distance = "T2VA: PSNR to the first column's clip"
    assert figures["truth-20"][distance]["value"] == 100.0 and 25 < figures["truth-degraded-20"][distance]["value"] < 35


def test_a_missed_target_is_marked() -> None:
    runs = {"good": {"t2va": [{"colour": 1.0}] * 20}, "poor": {"t2va": [{"colour": 1.0}] * 18 + [{"colour": 0.0}] * 2}}
    assert "| T2VA: colour | >= 95 % | 100 % | 90 % (missed) | 20 |" in markdown(runs)
    assert as_json(runs)["poor"]["T2VA: colour"] == {"value": 0.9, "target": 0.95, "examples": 20}


def test_runs_that_differ_have_their_own_names() -> None:
    def label(**changes: Any) -> str:
        plain = {"model": "demo", "steps": 20, "quality": "lossless", "dtype": "auto", "device": "cpu", "fault": None}
        plain["adapters"] = ()
        return evaluate.label_of(type("Arguments", (), plain | changes)())

    assert label() == "demo-20"
    names = [label(), *(label(fault=fault) for fault in FAULTS), label(quality="fast"), label(device="cuda")]
    names += [label(adapters=("a/teal.safetensors",)), label(adapters=("a/teal.safetensors=0.5", "b/glass"))]
    assert len(set(names)) == len(names)


def test_kept_clips_are_shown(run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("--model", "truth", "--rows", "t2va", "--count", "2", "--keep", "2")
    monkeypatch.setattr(sys, "argv", ["look", str(folder / "truth-20" / "t2va"), "--out", str(folder / "sheet.png")])
    look.main()
    assert Image.open(folder / "sheet.png").size[0] == 1200
    assert "wrong: nothing" in capsys.readouterr().out


def test_the_engine_makes_and_reconstructs(run: Any) -> None:
    """Plumbing: random weights, one evaluation."""
    settings = ["--model", "demo-random", "--count", "1", "--steps", "1", "--fault", "qkv-order"]
    folder = run(*settings, "--rows", "continue,vae") / "demo-random-1-qkv-order"
    continued, passed = (json.loads((folder / row / "000.json").read_text()) for row in ("continue", "vae"))
    assert passed["psnr"] < 25 and continued["continued"] == 0.0


class StandIn:
    """A generator that knows the answers: it reads a request as the real one does, and gives back the truth."""

    def __init__(self, known: list[Case]) -> None:
        self.known = {case.seed: case for case in known}
        self.asked: list[Any] = []

    def generate(self, fields: Any) -> Any:
        request = parse_request(fields)
        Ingest(SIZE_RULES).read(request)
        self.asked.append(request)
        video, audio = truth(self.known[request.seed])
        return SimpleNamespace(video=video, audio=audio)


@pytest.mark.parametrize("row", [name for name in ROWS if name != "vae"])
def test_every_row_through_the_engine(row: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = max(2, len(ROWS[row].kinds))
    stand_in = StandIn(list(cases(ROWS[row], count)))
    monkeypatch.setattr(evaluate.Generator, "from_pretrained", lambda *_args, **_settings: stand_in)
    folder = run("--rows", row, "--count", str(count), "--steps", "20") / "demo-20"
    assert [request.num_inference_steps for request in stand_in.asked] == [ROWS[row].steps or 20] * count
    lines = [line for line in LINES if line.row == row and line.figure != "to first"]
    assert lines and all(line.value(evaluate.read(folder, count, [row])) == 1.0 for line in lines)


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    for row in ("t2va", "vae"):
        (tmp_path / row).mkdir()
        (tmp_path / row / "000.json").write_text("{}")
    assert list(evaluate.read(tmp_path, 1, ROWS)) == ["t2va", "vae"]
    assert list(evaluate.read(tmp_path, 1, ["vae"])) == ["vae"]
