"""`h3serve lora`: what it prints and writes, and how it refuses."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3serve.cli.main import run
from h3serve.weights.demo.demo_random import write_demo_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(path)
    return str(path)


def adapter(folder: Path) -> str:
    name = "diffusion_model.blocks.1.attn.qkv_proj"
    tensors = {f"{name}.lora_A.weight": torch.randn(2, 64), f"{name}.lora_B.weight": torch.randn(1536, 2)}
    save_file(tensors | {f"{name}.alpha": torch.tensor(4.0)}, folder / "a.safetensors", {"base_model": "H3 pruned"})
    return str(folder / "a.safetensors")


def test_inspect(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lora", "inspect", adapter(tmp_path), "--model", model]) == 0
    shown = capsys.readouterr().out
    assert "ComfyUI native, 3 tensors" in shown and "layers: 1 of 36" in shown
    assert "rank 2: alpha 4 (the layer's own), scale 2, 1 updates" in shown
    assert "rows of q, k, v: stacked (as ComfyUI native writes it)" in shown
    assert "trained on: base_model H3 pruned" in shown and "warning:" in shown


def test_convert(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b.safetensors"
    assert run(["lora", "convert", adapter(tmp_path), str(out), "--to", "diffusers", "--model", model]) == 0
    assert {name.removeprefix("transformer.transformer_blocks.1.attn.") for name in load_file(out)} == {
        f"to_{part}.lora_{letter}.weight" for part in "qkv" for letter in "AB"
    }
    assert run(["lora", "convert", adapter(tmp_path), str(out), "--to", "diffusers", "--model", model]) == 2
    assert "is there already" in capsys.readouterr().err


def test_refusals(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = adapter(tmp_path)
    for arguments, sentence in (
        (["inspect", file], "[rank, 5376] is needed"),  # the released sizes
        (["inspect", file, "--model", model, "--qkv-layout", "odd"], "it must be stacked or interleaved"),
        (["inspect", file, "--model", model, "--partition", "both"], "it must be fl2va or ref2va"),
        (["convert", file, str(tmp_path / "c"), "--to", "gguf", "--model", model], "comfy, diffusers, peft"),
        (["inspect", str(tmp_path / "absent"), "--model", model], "cannot be read"),
    ):
        assert run(["lora", *arguments]) == 2
        assert sentence in capsys.readouterr().err
