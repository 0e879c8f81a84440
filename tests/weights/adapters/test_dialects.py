"""Each dialect's file, written from tables, gives the same float32 deltas in our own names and row order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h3serve.weights.adapters.adapter_layers import adapter_layers
from h3serve.weights.adapters.open_adapter import Adapter, open_adapter
from tests.weights.adapters.dialect_writer import (
    ATTENTION_AND_MLP,
    CONFIG,
    HIDDEN,
    INNER,
    NATIVE,
    Factors,
    in_diffusers_names,
    in_flat_names,
    in_native_names,
    random_factors,
    write,
)


def deltas(adapter: Adapter) -> dict[str, np.ndarray]:
    """Dense float64 deltas of a low-rank file, of whole tensors by our names."""
    found: dict[str, np.ndarray] = {}
    for update in adapter.updates:
        rows, columns = next(s[:2] for s in NATIVE.values() if f"{s[2]}.weight" == update.target)
        whole = found.setdefault(update.target, np.zeros((rows, columns)))
        base = torch.zeros(update.rows, columns)
        whole[update.first : update.first + update.rows] += update.delta(base).double().numpy()
    return found


def assert_equal(adapter: Adapter, factors: Factors) -> None:
    found = deltas(adapter)
    assert set(found) == {f"{NATIVE[name][2]}.weight" for name in factors.a}
    for name in factors.a:
        np.testing.assert_allclose(found[f"{NATIVE[name][2]}.weight"], factors.delta(name), atol=2e-6, rtol=1e-5)


def _interleaved_native(factors: Factors) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return in_native_names(factors, grouped=True)


PEFT_HEADER = {
    "lora_adapter_metadata": json.dumps(
        {"transformer.r": 2, "transformer.lora_alpha": 3, "transformer.use_rslora": False}
    )
}
DIALECTS: dict[str, tuple[str, Callable[[Factors], Any], dict[str, Any], float]] = {
    # label: (dialect recognised, names, how it is written, alpha / rank of rank 2)
    "diffusers": ("diffusers", in_diffusers_names, {"prefix": "transformer.", "header": PEFT_HEADER}, 1.5),
    "diffusers, reference partition": ("diffusers", in_diffusers_names, {"prefix": "transformer_ref."}, 1.0),
    "bare PEFT with a slot (LightX2V split)": ("PEFT", in_diffusers_names, {"suffix": "default"}, 1.0),
    "bare PEFT without": ("PEFT", in_diffusers_names, {}, 1.0),
    "PEFT save": ("PEFT", in_diffusers_names, {"prefix": "base_model.model."}, 1.0),
    "PEFT model dump": (
        "PEFT",
        in_diffusers_names,
        {"prefix": "peft_model.base_model.model.", "suffix": "default"},
        1.0,
    ),
    "ai-toolkit": ("ComfyUI native", in_native_names, {"prefix": "diffusion_model."}, 1.0),
    "ai-toolkit by its header": (
        "ai-toolkit",
        in_native_names,
        {"prefix": "diffusion_model.", "header": {"software": '{"name": "ai-toolkit"}'}},
        1.0,
    ),
    "Comfy, bare (larryvrh)": ("ComfyUI native", in_native_names, {}, 1.0),
    "Comfy, model prefix": ("ComfyUI native", in_native_names, {"prefix": "model.diffusion_model.", "alpha": 5.0}, 2.5),
    "Comfy, lora.down": ("ComfyUI native", in_native_names, {"suffix": "lora.down", "alpha": 1.0}, 0.5),
    "kohya": ("kohya / musubi", in_flat_names, {"prefix": "lora_unet_", "suffix": "down", "alpha": 1.0}, 0.5),
    "kohya, transformer": ("kohya / musubi", in_flat_names, {"prefix": "lora_transformer_", "suffix": "down"}, 1.0),
    "kohya, one alpha for all": (
        "kohya / musubi",
        in_flat_names,
        {"prefix": "lora_unet_", "suffix": "down", "header": {"ss_network_alpha": "0.5", "ss_network_dim": "2"}},
        0.25,
    ),
    "DiffSynth": ("DiffSynth", _interleaved_native, {"suffix": "default"}, 1.0),
    "FlashGen": (
        "FlashGen",
        _interleaved_native,
        {
            "prefix": "transformer.",
            "suffix": "default",
            "header": {"key_format": "minimax-h3-native", "qkv_layout": "grouped", "lora_alpha": "64"},
        },
        32.0,
    ),
    "FlashGen without its header": (
        "FlashGen",
        _interleaved_native,
        {"prefix": "transformer.", "suffix": "default"},
        1.0,
    ),
    "PDD": ("PDD", in_diffusers_names, {"suffix": "bare down", "header": {"lora_rank": "2", "lora_alpha": "1"}}, 0.5),
    "HyperFlow": (
        "HyperFlow",
        in_diffusers_names,
        {"prefix": "transformer.", "header": {"hyperflow": "1", "lora_alpha": "2"}},
        1.0,
    ),
    "TaoMate": ("TaoMate", in_native_names, {"suffix": "lora_a"}, 1.0),
    "FastH3": ("FastH3", in_diffusers_names, {"header": {"format": "fastvideo-lora-v2"}}, 1.0),
}


@pytest.mark.parametrize("label", DIALECTS)
def test_every_layer_of_a_dialect(label: str, tmp_path: Path) -> None:
    dialect, names, how, scale = DIALECTS[label]
    factors = random_factors()
    factors.scale = scale
    adapter = open_adapter(write(tmp_path / "style.safetensors", names(factors), **how), CONFIG)
    assert adapter.dialect == dialect
    assert adapter.layers == adapter.layers_there == len(NATIVE)
    assert_equal(adapter, factors)
    assert adapter.warnings == () and adapter.needs == ()


def test_the_layers_of_the_released_size() -> None:
    """312 split or 208 fused modules of attention and MLP; 51 AdaLN projections, 2 heads, 3 inputs, 2 of time."""
    from h3serve.models.transformer.transformer_config import TransformerConfig

    known = adapter_layers(TransformerConfig())
    assert len(known.paths) == 52 * 4 + 50 + 1 + 2 + 3 + 2
    split = [n for n in known.layout_names["diffusers"] if ".attn." in n or ".ff." in n]
    assert len(split) == 52 * 6
    assert len(known.flat) == len(known.dotted)  # no two names become one without dots
    fused = known.dotted["blocks.49.attn.qkv_proj"]
    assert (fused.rows, fused.columns) == (21504, 5376)
    value = known.dotted["transformer_blocks.49.attn.to_v"]
    assert (value.first, value.rows) == (14336, 7168)
    assert known.dotted["final_layer.adaln_proj.linear"].rows == 10752


def test_a_partition_prefix_is_a_declaration(tmp_path: Path) -> None:
    file = write(tmp_path / "a.safetensors", in_diffusers_names(random_factors()), prefix="transformer_ref.")
    assert open_adapter(file, CONFIG, partition="ref2va").partition == "ref2va"


def test_row_order_as_given_wins(tmp_path: Path) -> None:
    """DiffSynth's names come from runs on stacked bases too (L03)."""
    factors = random_factors()
    file = write(tmp_path / "a.safetensors", in_native_names(factors), suffix="default")
    adapter = open_adapter(file, CONFIG, qkv_layout="stacked")
    assert adapter.qkv_rows == "stacked (as given)"
    assert_equal(adapter, factors)
    with pytest.raises(AssertionError):
        assert_equal(open_adapter(file, CONFIG), factors)
    native = write(tmp_path / "b.safetensors", in_native_names(factors, grouped=True))
    assert_equal(open_adapter(native, CONFIG, qkv_layout="interleaved"), factors)


def test_q_k_v_of_differing_ranks_and_alphas(tmp_path: Path) -> None:
    """Split files may hold any of the three, each with its own rank and alpha; `rank_pattern` is the shapes' own."""
    rng = np.random.default_rng(1)
    ranks, alphas, more, expected = {"q": 1, "v": 3}, {"q": 4.0, "v": 6.0}, {}, np.zeros((3 * INNER, HIDDEN))
    for part, letter in enumerate("qkv"):
        if letter not in ranks:
            continue
        a = rng.standard_normal((ranks[letter], HIDDEN)).astype(np.float32)
        b = rng.standard_normal((INNER, ranks[letter])).astype(np.float32)
        name = f"transformer_blocks.1.attn.to_{letter}"
        more |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        more[f"{name}.alpha"] = np.array([alphas[letter]], np.float64)
        expected[part * INNER : (part + 1) * INNER] = alphas[letter] / ranks[letter] * (b @ a)
    adapter = open_adapter(write(tmp_path / "a.safetensors", {}, more=more), CONFIG)
    (found,) = deltas(adapter).values()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert adapter.layers == 1 and sorted(s.rank for s in adapter.scales) == [1, 3]


def _stacked(factors: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """[A_q; A_k; A_v] and a block-diagonal B."""
    a = np.concatenate([pair[0] for pair in factors.values()])
    b = np.zeros((3 * INNER, len(a)), np.float32)
    row = column = 0
    for _, part in factors.values():
        b[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return a, b


@pytest.mark.parametrize("told", ["alpha of the layer", "rank and alpha of the header"])
def test_fused_from_split_is_the_split_file(told: str, tmp_path: Path) -> None:
    """L02: factors of q, k, v stacked to three times the rank; the effect is neither a third nor three times."""
    rng, rank = np.random.default_rng(2), 2
    parts = {
        letter: (
            rng.standard_normal((rank, HIDDEN)).astype(np.float32),
            rng.standard_normal((INNER, rank)).astype(np.float32),
        )
        for letter in "qkv"
    }
    split = {f"transformer_blocks.0.attn.to_{letter}": pair for letter, pair in parts.items()}
    one = open_adapter(write(tmp_path / "split.safetensors", split, alpha=8.0), CONFIG)
    fused = {"blocks.0.attn.qkv_proj": _stacked(parts)}
    if told == "alpha of the layer":
        how: dict[str, Any] = {"alpha": 24.0}
    else:
        how = {"header": {"rank": "2", "alpha": "8"}}
    other = open_adapter(write(tmp_path / "fused.safetensors", fused, prefix="diffusion_model.", **how), CONFIG)
    (expected,), (found,) = deltas(one).values(), deltas(other).values()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_attention_and_mlp_alone(tmp_path: Path) -> None:
    factors = random_factors(ATTENTION_AND_MLP)
    adapter = open_adapter(write(tmp_path / "a.safetensors", in_diffusers_names(factors)), CONFIG)
    assert (adapter.layers, adapter.layers_there) == (12, len(NATIVE))
    assert_equal(adapter, factors)
    assert not any(update.is_modulation for update in adapter.updates)


def test_adaln_of_another_rank(tmp_path: Path) -> None:
    """L07, larryvrh: rank 64 beside AdaLN of rank 16; full-width AdaLN is an ordinary update."""
    factors = random_factors(ATTENTION_AND_MLP, rank=4)
    adaln = random_factors(tuple(name for name in NATIVE if "adaln" in name), rank=1, seed=3)
    factors.a |= adaln.a
    factors.b |= adaln.b
    adapter = open_adapter(write(tmp_path / "a.safetensors", in_native_names(factors)), CONFIG)
    assert_equal(adapter, factors)
    assert sum(update.is_modulation for update in adapter.updates) == 3
    assert {scale.rank for scale in adapter.scales} == {4, 1}
