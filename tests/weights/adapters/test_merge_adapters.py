"""Merging into checkpoints of both layouts: base + deltas in float64, computed here; the rest of the folder stays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3serve.cli.main import run
from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.merge_adapters import merge_adapters
from h3serve.weights.adapters.open_adapter import open_adapter
from h3serve.weights.files.checkpoint_folder import open_folder
from h3serve.weights.formats.load import load_component, read_tensors
from h3serve.weights.formats.opened_component import open_component

QKV, FC1, HEAD = "blocks.2.attn.qkv_proj", "blocks.0.mlp.fc1", "final_layer.video_out"


def factors(name: str, rows: int, columns: int, seed: int, size: float = 0.1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    a, b = torch.randn(2, columns) * size, torch.randn(rows, 2) * size
    return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}


def weights(folder: Path, target: str) -> torch.Tensor:
    opened = open_component(open_folder(folder), "transformer", "fl2va")
    return read_tensors(opened.index, opened.key_map.entries, {target})[target]


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_three_adapters_in_any_order(layout: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Strengths -1, 0.5 and 2; the change of each is there, whatever the order, and the canary passes."""
    root: Path = request.getfixturevalue(layout)
    model = open_folder(root)
    config = open_component(model, "transformer", "fl2va").config
    stored = [
        factors(QKV, 1536, 64, 0) | factors(FC1, 320, 64, 1),
        factors(QKV, 1536, 64, 2),
        factors(HEAD, 96, 64, 3) | factors(QKV, 1536, 64, 4),
    ]
    strengths, adapters = (-1.0, 0.5, 2.0), []
    for number, tensors in enumerate(stored):
        save_file(tensors, tmp_path / f"{number}.safetensors")
        adapters.append((open_adapter(tmp_path / f"{number}.safetensors", config), strengths[number]))
    merged = merge_adapters(model, "fl2va", adapters, tmp_path / "one")
    merge_adapters(model, "fl2va", adapters[::-1], tmp_path / "two")
    assert merged.tensors == 3
    for name in (QKV, FC1, HEAD):
        target = f"transformer.{name}.weight"
        base, found = weights(root, target), weights(tmp_path / "one", target)
        expected = base.double()
        for strength, tensors in zip(strengths, stored, strict=True):
            if f"{name}.lora_A.weight" in tensors:
                expected += (
                    strength * tensors[f"{name}.lora_B.weight"].double() @ tensors[f"{name}.lora_A.weight"].double()
                )
        torch.testing.assert_close(found.double(), expected.to(base.dtype).double(), atol=1e-6, rtol=2**-7)
        torch.testing.assert_close(weights(tmp_path / "two", target), found, atol=1e-6, rtol=2**-7)
    for untouched in ("transformer.blocks.1.mlp.fc2.weight", "modulation.blocks.0.adaln_proj.linear.bias"):
        assert torch.equal(weights(root, untouched), weights(tmp_path / "one", untouched))
    load_component(open_component(open_folder(tmp_path / "one"), "transformer", "fl2va"))


def test_what_rounding_takes(original: Path, tmp_path: Path) -> None:
    """A change far below half a unit of the last place of bfloat16 is lost whole; in a float32 head nothing is."""
    model = open_folder(original)
    opened = open_component(model, "transformer", "fl2va")
    assert weights(original, f"transformer.{QKV}.weight").dtype == torch.bfloat16
    for name, rows, low, high in ((QKV, 1536, 0.9, 1.1), (HEAD, 96, 0.0, 0.01)):
        save_file(factors(name, rows, 64, 0, size=1e-3), tmp_path / "a.safetensors")
        adapter = open_adapter(tmp_path / "a.safetensors", opened.config)
        merged = merge_adapters(model, "fl2va", [(adapter, 1.0)], tmp_path / name)
        assert low <= merged.lost <= high, name


def test_strength_zero_keeps_the_bits(original: Path, tmp_path: Path) -> None:
    model = open_folder(original)
    save_file(factors(QKV, 1536, 64, 0), tmp_path / "a.safetensors")
    adapter = open_adapter(tmp_path / "a.safetensors", open_component(model, "transformer", "fl2va").config)
    assert merge_adapters(model, "fl2va", [(adapter, 0.0)], tmp_path / "out").tensors == 0
    for file in (original / "FL2VA" / "transformer").glob("*.safetensors"):
        before, after = load_file(file), load_file(tmp_path / "out" / "transformer" / file.name)
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("tensors", "strength", "sentence"),
    [
        ({f"{HEAD}.set_weight": torch.ones(96, 64)}, 0.5, "its strength is 0 or 1, not 0.5"),
        ({"proj_out.weight": torch.ones(4, 96, 64)}, 1.0, "needs an output head for every interval"),
        ({f"{HEAD}.diff": torch.ones(96, 64)}, float("nan"), "strength nan is not a number"),
        ({"blocks.0.mlp.fc1.diff": torch.full((320, 64), 3e38)}, 4.0, "no longer be finite"),
    ],
)
def test_what_cannot_be_merged(tensors: Any, strength: float, sentence: str, original: Path, tmp_path: Path) -> None:
    model = open_folder(original)
    save_file(tensors, tmp_path / "a.safetensors")
    adapter = open_adapter(tmp_path / "a.safetensors", open_component(model, "transformer", "fl2va").config)
    with pytest.raises(CheckpointError, match=sentence):
        merge_adapters(model, "fl2va", [(adapter, strength)], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_from_the_command_line(original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file(factors(QKV, 1536, 64, 0), tmp_path / "a=b.safetensors")
    arguments = ["lora", "merge", str(original), str(tmp_path / "out"), "--lora", f"{tmp_path / 'a=b.safetensors'}=0.5"]
    assert run(arguments) == 0
    assert "1 tensors changed" in capsys.readouterr().out
    assert run(arguments) == 2 and "is there already" in capsys.readouterr().err
