"""Sizes of a checkpoint, against the bytes that its files' headers name."""

import json

import pytest
import torch
from safetensors import safe_open

from h3serve.cli.main import run
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.runtime.offload.policy import Held, held_as, released
from h3serve.weights.formats.opened_component import open_checkpoint
from h3serve.weights.locate import locate

BODY = {"task": "t2va", "prompt": "rain", "target": {"short_edge": 64, "duration_seconds": 4}}


def stored_values(name: str) -> int:
    """Numbers in the safetensors files of a component of the demo checkpoint."""
    total = 0
    for file in locate("demo-random", "fl2va").component(name, "fl2va").weights.glob("*.safetensors"):
        with safe_open(file, "pt") as box:
            total += sum(torch.Size(box.get_slice(key).get_shape()).numel() for key in box.keys())  # noqa: SIM118
    return total


def demo(dtype: torch.dtype) -> Held:
    return held_as({"fl2va": open_checkpoint(locate("demo-random", "fl2va"), "fl2va")}, dtype)


def test_a_checkpoint_is_as_large_as_its_files_say() -> None:
    held = demo(torch.float32).model
    vaes = stored_values("video_vae") + stored_values("audio_vae")
    assert held.core_params + held.adaln_params == pytest.approx(stored_values("transformer"), rel=1e-4)
    assert held.vae_params == pytest.approx(vaes, rel=1e-4)  # a few stored values are computed, not read
    assert held.value_bytes == 4 and demo(torch.bfloat16).model.value_bytes == 2


def test_a_plan_shows_the_memory_of_the_model_it_is_for() -> None:
    """At least the weights without AdaLN, and what a hundred megabytes of model can need at most."""
    held = demo(torch.float32)
    plan = Plan.resolve(parse_request(BODY), model=held.model)
    shown = plan.describe()
    weights = held.model.core_params * 4
    assert weights < plan.peak_bytes < weights + 2**28 and shown["peak_gib"] < 1
    assert shown["petaflops"] > 0 and shown["request_seconds"] == {}  # it was measured of the release
    assert Plan.resolve(parse_request(BODY)).describe()["peak_gib"] > 37


def test_8_bits_are_planned_as_8_bits() -> None:
    both = [released(float8=float8).model for float8 in (False, True)]
    assert both[1].core_params * 2 < 0.55 * both[0].core_params * 2


def test_the_command_takes_memory_from_the_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--prompt", "rain", "--short-edge", "64", "--duration", "4", "--model", "demo-random"]
    assert run(arguments) == 0
    assert "in float32" in capsys.readouterr().out
    assert run([*arguments, "--device-gib", "24", "--host-gib", "64", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["peak_gib"] < 1 and max(shown["placement"]["peak_bytes"].values()) < 2**30
