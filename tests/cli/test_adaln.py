"""`h3serve adaln` and the placement that `h3serve plan` shows."""

import json
from pathlib import Path

import pytest

from h3serve.cli.main import run
from h3serve.runtime import loading
from h3serve.weights.demo.demo_random import write_demo_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(path)
    return path


def test_build_and_show(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SMALL", 0)
    common = ["--model", str(folder), "--cache", str(tmp_path), "--device", "cpu"]
    assert run(["adaln", "show", *common]) == 0
    assert "no tables in" in capsys.readouterr().out
    assert run(["adaln", "build", *common, "--steps", "7"]) == 0
    assert "7 steps" in capsys.readouterr().out
    (file,) = tmp_path.glob("adaln/fl2va-*/*.safetensors")
    before = file.stat().st_mtime_ns
    assert run(["adaln", "build", *common, "--steps", "7"]) == 0
    assert "7 steps" in capsys.readouterr().out and file.stat().st_ino and file.stat().st_mtime_ns >= before
    assert run(["adaln", "show", *common, "--dtype", "bfloat16"]) == 0
    assert "not used" in capsys.readouterr().out


def test_a_small_model_keeps_no_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["adaln", "build", "--model", str(folder), "--cache", str(tmp_path), "--device", "cpu"]) == 0
    assert "small" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_an_unknown_partition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["adaln", "show", "--partition", "both"]) == 2
    assert "fl2va or ref2va" in capsys.readouterr().err


PLAN = ["plan", "--task", "t2va", "--prompt", "rain", "--duration", "5"]


def test_plan_explains_the_placement(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--device-gib", "24", "--host-gib", "64"]) == 0
    shown = capsys.readouterr().out
    assert "transformer stream" in shown and "left in their files" in shown
    assert run([*PLAN, "--device-gib", "140", "--host-gib", "64", "--json"]) == 0
    placement = json.loads(capsys.readouterr().out)["placement"]
    assert set(placement["modes"].values()) == {"resident"}


def test_plan_of_8_bit_layers(capsys: pytest.CaptureFixture[str]) -> None:
    """They halve what DiT and encoder need, so that a card stays with everything resident."""
    for quantize, modes in (("none", {"resident", "stream"}), ("fp8", {"resident"})):
        assert run([*PLAN, "--device-gib", "79", "--host-gib", "128", "--quantize", quantize, "--json"]) == 0
        placement = json.loads(capsys.readouterr().out)["placement"]
        assert set(placement["modes"].values()) == modes
    assert run([*PLAN, "--quantize", "int8"]) == 2
    assert capsys.readouterr().err.startswith("h3serve: quantize: 'int8'")


def test_plan_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--device-gib", "80", "--residency", "resident"]) == 2
    assert "GiB on the device" in capsys.readouterr().err
