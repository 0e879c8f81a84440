"""The measuring code itself, on tiny networks and a CPU: what it runs and what it reports."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.main import get_command

from bench.report import Figure, Report
from bench.speed import growth_command, transformer_step, video_vae
from bench.speed.whole_request import bench_request
from h3serve.cli.bench import find_benchmarks
from h3serve.cli.main import run
from h3serve.core.errors import RequestError
from h3serve.models.transformer.denoiser import Denoiser
from tests.models.tiny_transformer import tiny_denoiser
from tests.models.tiny_video_vae import tiny
from tests.pipeline.small_engine import small_engine

TARGET = {"short_edge": 64, "duration_seconds": 4}
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def denoiser() -> Denoiser:
    return tiny_denoiser()


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    pytest.importorskip("diffusers")
    spec = importlib.util.spec_from_file_location("peer", ROOT / "bench" / "diffusers_peer.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_name(report: Report) -> dict[str, Figure]:
    return {figure.name: figure for figure in report.figures}


@torch.inference_mode()
def test_step(denoiser: Denoiser) -> None:
    report = transformer_step.bench_step(
        denoiser, ["exact", "lossless-plain", "fast"], target=TARGET, text_tokens=5, rounds=2, ceiling_seconds=0.01
    )
    figures = by_name(report)
    assert list(figures) == ["exact", "lossless-plain", "fast"]
    assert all(f.seconds and f.seconds > 0 and f.floor_seconds and f.floor_seconds > 0 for f in figures.values())
    assert "| lossless-plain |" in report.markdown()
    assert all(parameter.dtype == torch.float32 for parameter in denoiser.parameters())  # the twin is another


@torch.inference_mode()
def test_the_driver_of_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails loses nothing of the others, and one that would take too long is left out."""
    spec = importlib.util.spec_from_file_location("driver", ROOT / "bench" / "speed_h200.py")
    assert spec and spec.loader
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    assert all(callable(getattr(driver.Bench, part)) for part in driver.PARTS)
    monkeypatch.setattr(driver.Bench, "text", lambda self: 1 / 0)
    only = "text,growth,request50,block_error"
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path), "--tiny", "--limit", "200", "--only", only])
    driver.main()
    said = capsys.readouterr().out
    assert "text FAILED" in said and "request50 left out: 300 s are not left" in said
    held = json.loads((tmp_path / "speed.json").read_text())
    assert list(held) == ["Growth, lossless", "Error of one block, 617 rows"]


@torch.inference_mode()
def test_variants_of_a_tier(denoiser: Denoiser) -> None:
    """8-bit layers without the fast tier: another network than `lossless`, the same as `fast` where no kernel is."""
    inputs = transformer_step.request_inputs(denoiser, TARGET, 5)
    calls = transformer_step.tier_calls(denoiser, inputs, ["lossless", "lossless-fp8", "fast"])
    lossless, eight, fast = (transformer_step.flat(call()) for call in calls.values())
    assert torch.equal(eight, fast) and 0.005 < transformer_step.distance(eight, lossless) < 0.1


@torch.inference_mode()
def test_growth(denoiser: Denoiser) -> None:
    points = growth_command.read_points("64:4,128:4")
    report = growth_command.bench_growth(denoiser, "lossless", points=points, text_tokens=5, rounds=1)
    assert [figure.name for figure in report.figures] == ["617 rows", "1257 rows"]
    for figure in report.figures:  # two points, two rates: the curve goes through both
        assert figure.seconds == pytest.approx(figure.floor_seconds)
    for text in ("64", "64:x", "64:4"):
        with pytest.raises(RequestError, match="points"):
            growth_command.read_points(text)


@torch.inference_mode()
def test_peer_has_our_weights(denoiser: Denoiser, peer: ModuleType) -> None:
    report = transformer_step.bench_step_error(
        denoiser, ["exact", "fast"], target=TARGET, text_tokens=5, peer=peer.transformer
    )
    figures = by_name(report)
    assert figures["peer"].error is not None and figures["peer"].error < 1e-5
    assert report.facts["exact from the peer"] == "0.00e+00"
    assert figures["exact"].error == 0.0  # on a CPU in float32 it is the float32 run
    assert figures["fast"].error is not None and 0.005 < figures["fast"].error < 0.1


@torch.inference_mode()
def test_block_error(denoiser: Denoiser) -> None:
    figures = by_name(
        transformer_step.bench_block_error(denoiser, ["exact", "lossless-plain", "fast"], target=TARGET, text_tokens=5)
    )
    assert figures["exact"].error == 0.0
    whole, added = figures["fast"].error, figures["fast, of what it adds"].error
    assert whole and added and 0 < whole < added


@torch.inference_mode()
def test_vae_and_its_peer(peer: ModuleType) -> None:
    vae = tiny()
    target = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}
    report = video_vae.bench_decode(vae, target=target, rounds=1)
    assert list(by_name(report)) == ["exact", "lossless-plain", "lossless"]
    theirs, latents = peer.video_vae(vae), torch.randn(1, 24, 7, 4, 4)
    raw = theirs["decode"](latents)  # normalized latents are the pipeline's affair there
    assert raw.shape == (1, 3, 22, 64, 64)
    pixels = torch.randn(1, 3, 5, 32, 32)
    assert torch.allclose(theirs["encode"](pixels), vae.encode(pixels).mean, atol=1e-4)


def test_request(tmp_path: Path) -> None:
    engine = small_engine()
    report = bench_request(engine, target=TARGET, evaluations=2, prompt="x", output=tmp_path / "clip.mp4")
    figures = by_name(report)
    assert {"encode text", "denoise", "decode video", "all but the evaluations"} <= set(figures)
    total, denoise = figures["to the finished MP4"].seconds, figures["denoise"].seconds
    assert total and denoise and figures["one evaluation"].seconds == denoise / 2 < total
    assert (tmp_path / "clip.mp4").stat().st_size > 0


def test_reports_add_up(tmp_path: Path) -> None:
    out = tmp_path / "h200"
    for seconds in (2.0, 1.0):
        Report("Step", {"rounds": 3}, [Figure("exact", seconds, flops=1e12, peer_seconds=3.0)]).write(out)
    Report("Other", {}, [Figure("only an error", error=1e-3)]).write(out)
    held = json.loads(out.with_suffix(".json").read_text())
    assert list(held) == ["Step", "Other"] and held["Step"]["figures"][0]["seconds"] == 1.0
    text = out.with_suffix(".md").read_text()
    assert "| exact | 1000.00 | 1 |  | 3.000x |" in text and "| only an error |  |  |  |  | 1.00e-03 |" in text


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert run(["bench", "step"]) == 2
    assert "GPU" in capsys.readouterr().err


def test_a_peer_that_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "step", "--peer", "missing.py"]) == 2
    assert "missing.py" in capsys.readouterr().err


def test_the_door_without_a_checkout(tmp_path: Path) -> None:
    """The installed package alone says where its benchmarks are."""
    missing = get_command(find_benchmarks(tmp_path))
    with pytest.raises(RequestError, match="source repository"):
        missing.main(args=["step", "--seconds", "5"], standalone_mode=False)
