"""Adapters written for another program: read back they are the same; diffusers' own loader makes the same weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.adapter_layers import adapter_layers
from h3serve.weights.adapters.convert_adapter import convert_adapter
from h3serve.weights.adapters.open_adapter import open_adapter
from h3serve.weights.adapters.updates import LowRank
from tests.weights.adapters.dialect_writer import (
    ATTENTION_AND_MLP,
    CONFIG,
    HIDDEN,
    INNER,
    NATIVE,
    in_diffusers_names,
    in_native_names,
    random_factors,
    write,
)
from tests.weights.adapters.test_dialects import assert_equal, deltas

LAYERS = adapter_layers(CONFIG)


def adapter_file(out: Path, form: str) -> Path:
    return out / "adapter_model.safetensors" if form == "peft" else out


@pytest.mark.parametrize("form", ["comfy", "diffusers", "peft"])
@pytest.mark.parametrize("names", [in_native_names, in_diffusers_names])
def test_there_and_back(names: Any, form: Any, tmp_path: Path) -> None:
    factors = random_factors(rank=3)
    factors.scale = 0.5
    read = open_adapter(write(tmp_path / "a.safetensors", names(factors), alpha=1.5), CONFIG)
    convert_adapter(read, LAYERS, form, tmp_path / "out")
    again = open_adapter(adapter_file(tmp_path / "out", form), CONFIG)
    assert_equal(again, factors)
    assert again.dialect == {"comfy": "ComfyUI native", "diffusers": "diffusers", "peft": "PEFT"}[form]
    with pytest.raises(CheckpointError, match="is there already"):
        convert_adapter(read, LAYERS, form, tmp_path / "out")


@pytest.mark.parametrize("form", ["comfy", "diffusers", "peft"])
def test_differing_ranks_and_alphas(form: Any, tmp_path: Path) -> None:
    rng, more = np.random.default_rng(0), {}
    for letter, rank, alpha in (("q", 1, 2.0), ("v", 4, 3.0)):
        name = f"transformer_blocks.0.attn.to_{letter}"
        more[f"{name}.lora_A.weight"] = rng.standard_normal((rank, HIDDEN)).astype(np.float32)
        more[f"{name}.lora_B.weight"] = rng.standard_normal((INNER, rank)).astype(np.float32)
        more[f"{name}.alpha"] = np.float32(alpha)[None]
    read = open_adapter(write(tmp_path / "a.safetensors", {}, more=more), CONFIG)
    convert_adapter(read, LAYERS, form, tmp_path / "out")
    (expected,), (found,) = (
        deltas(read).values(),
        deltas(open_adapter(adapter_file(tmp_path / "out", form), CONFIG)).values(),
    )
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_bits_of_factors_stay(tmp_path: Path) -> None:
    factors = random_factors()
    read = open_adapter(write(tmp_path / "a.safetensors", in_native_names(factors), alpha=5.0), CONFIG)
    convert_adapter(read, LAYERS, "comfy", tmp_path / "b.safetensors")
    stored = load_file(tmp_path / "b.safetensors")
    name = "diffusion_model.blocks.0.attn.qkv_proj"
    assert np.array_equal(stored[f"{name}.lora_B.weight"], factors.b["blocks.0.attn.qkv_proj"])
    assert stored[f"{name}.alpha"] == 5.0


def test_what_a_form_cannot_say(tmp_path: Path) -> None:
    name = "blocks.0.mlp.fc2"
    tensors = {f"{name}.lokr_w1": torch.randn(2, 2), f"{name}.lokr_w2": torch.randn(6, 5)}
    save_file(tensors, tmp_path / "a.safetensors")
    read = open_adapter(tmp_path / "a.safetensors", CONFIG)
    with pytest.raises(
        CheckpointError, match="LoKr of transformer.blocks.0.mlp.fc2.weight cannot be written in the form"
    ):
        convert_adapter(read, LAYERS, "diffusers", tmp_path / "b")
    convert_adapter(read, LAYERS, "comfy", tmp_path / "b")
    assert torch.equal(load_file(tmp_path / "b")[f"diffusion_model.{name}.lokr_w2"], tensors[f"{name}.lokr_w2"])


DIFFUSERS_LOADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "its own": (in_diffusers_names, {"prefix": "transformer."}),
    "ai-toolkit": (in_native_names, {"prefix": "diffusion_model."}),
    "alpha a layer": (in_native_names, {"suffix": "down", "alpha": 3.0}),
}


@pytest.mark.parametrize("label", [*DIFFUSERS_LOADS, "converted by us"])
def test_beside_diffusers(label: str, tmp_path: Path) -> None:
    """diffusers loads the same file and fuses it: each of its weights has moved by our delta."""
    from diffusers import MiniMaxH3Transformer3DModel
    from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin

    factors = random_factors(ATTENTION_AND_MLP, rank=3, seed=4)
    names, how = DIFFUSERS_LOADS.get(label, (in_native_names, {"alpha": 1.0}))
    file = write(tmp_path / "a.safetensors", names(factors), **how)
    ours = deltas(open_adapter(file, CONFIG))
    if label == "converted by us":
        convert_adapter(open_adapter(file, CONFIG), LAYERS, "diffusers", tmp_path / "b.safetensors")
        file = tmp_path / "b.safetensors"
    c = CONFIG
    model = MiniMaxH3Transformer3DModel(
        hidden_size=c.hidden_size,
        num_layers=c.num_layers,
        num_refiner_layers=c.num_refiner_layers,
        num_attention_heads=c.num_attention_heads,
        attention_head_dim=c.attention_head_dim,
        ffn_dim=c.ffn_dim,
        text_dim=c.text_dim,
        freq_dim=c.freq_dim,
        time_embed_hidden_dim=c.time_embed_hidden_dim,
        time_embed_dim=c.time_embed_dim,
        rope_freq_dim=1,
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, metadata = MiniMaxH3LoraLoaderMixin.lora_state_dict(str(file), return_lora_metadata=True)
    model.load_lora_adapter(state, prefix="transformer", metadata=metadata, adapter_name="a")
    model.fuse_lora()
    model.unload_lora()
    moved = {name: (value - before[name]).numpy() for name, value in model.state_dict().items()}
    expected = in_diffusers_names(factors)
    for name in ATTENTION_AND_MLP:
        delta = ours[f"{NATIVE[name][2]}.weight"]
        assert np.abs(delta).max() > 0.1
        identity = type(factors)({name: np.eye(NATIVE[name][1])}, {name: delta})
        for part, (_, rows) in in_diffusers_names(identity).items():
            assert part in expected
            np.testing.assert_allclose(moved[f"{part}.weight"], rows, atol=2e-5)


def test_rows_of_diffsynth_beside_diffusers(tmp_path: Path) -> None:
    """L03: diffusers knows heads of 128 only."""
    from diffusers.loaders import lora_conversion_utils

    config = replace(CONFIG, num_attention_heads=2, attention_head_dim=128)
    torch.manual_seed(0)
    name = "blocks.1.attn.qkv_proj"
    tensors = {
        f"{name}.lora_A.default.weight": torch.randn(2, HIDDEN),
        f"{name}.lora_B.default.weight": torch.randn(768, 2),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    (update,) = open_adapter(tmp_path / "a.safetensors", config).updates
    theirs = lora_conversion_utils._convert_non_diffusers_minimax_h3_lora_to_diffusers(tensors)
    split = [theirs[f"transformer.transformer_blocks.1.attn.to_{part}.lora_B.weight"] for part in "qkv"]
    assert isinstance(update, LowRank) and torch.equal(update.b, torch.cat(split))
    assert not torch.equal(update.b, tensors[f"{name}.lora_B.default.weight"])
