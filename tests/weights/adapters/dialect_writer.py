"""Adapter files as other programs write them, from tables of their names: nothing here comes from our own key maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from h3serve.models.transformer.transformer_config import TransformerConfig

HIDDEN, HEADS, WIDTH, FFN, TEXT, FREQ, TIME = 12, 3, 4, 10, 6, 8, 6
INNER = HEADS * WIDTH
CONFIG = TransformerConfig(
    hidden_size=HIDDEN,
    num_layers=2,
    num_refiner_layers=1,
    num_attention_heads=HEADS,
    attention_head_dim=WIDTH,
    ffn_dim=FFN,
    text_dim=TEXT,
    freq_dim=FREQ,
    time_embed_hidden_dim=HIDDEN,
    time_embed_dim=TIME,
)

# native module -> (rows, columns, our tensor)
NATIVE: dict[str, tuple[int, int, str]] = {
    "video_patch_proj": (HIDDEN, 96, "transformer.video_patch_proj"),
    "audio_patch_proj": (HIDDEN, 32, "transformer.audio_patch_proj"),
    "condition_proj": (HIDDEN, TEXT, "transformer.condition_proj"),
    "time_embedder.proj_in": (HIDDEN, FREQ, "modulation.time_embedder.proj_in"),
    "time_embedder.proj_out": (TIME, HIDDEN, "modulation.time_embedder.proj_out"),
    "final_layer.adaln_proj.linear": (2 * HIDDEN, TIME, "modulation.final_layer.adaln_proj.linear"),
    "final_layer.video_out": (96, HIDDEN, "transformer.final_layer.video_out"),
    "final_layer.audio_out": (32, HIDDEN, "transformer.final_layer.audio_out"),
}
for _block in ("blocks.0", "blocks.1", "token_refiner.blocks.0"):
    NATIVE |= {
        f"{_block}.attn.qkv_proj": (3 * INNER, HIDDEN, f"transformer.{_block}.attn.qkv_proj"),
        f"{_block}.attn.out_proj": (HIDDEN, INNER, f"transformer.{_block}.attn.out_proj"),
        f"{_block}.mlp.fc1": (2 * FFN, HIDDEN, f"transformer.{_block}.mlp.fc1"),
        f"{_block}.mlp.fc2": (HIDDEN, FFN, f"transformer.{_block}.mlp.fc2"),
    }
for _block in ("blocks.0", "blocks.1"):
    NATIVE[f"{_block}.adaln_proj.linear"] = (18 * HIDDEN, TIME, f"modulation.{_block}.adaln_proj.linear")

# native -> diffusers, where a name changes; q, k, v and fc1 are told by `in_diffusers_names`
DIFFUSERS = {
    "video_patch_proj": "proj_in",
    "audio_patch_proj": "audio_proj_in",
    "condition_proj": "context_embedder",
    "time_embedder.proj_in": "time_embedder.linear_1",
    "time_embedder.proj_out": "time_embedder.linear_2",
    "final_layer.adaln_proj.linear": "norm_out.linear",
    "final_layer.video_out": "proj_out",
    "final_layer.audio_out": "audio_proj_out",
    "blocks.0": "transformer_blocks.0",
    "blocks.1": "transformer_blocks.1",
    "token_refiner.blocks.0": "token_refiner.refiner_blocks.0",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
    "adaln_proj.linear": "adaln_proj.linear",
}
ATTENTION_AND_MLP = tuple(name for name in NATIVE if ".attn." in name or ".mlp." in name)
SUFFIXES = {
    "lora_A": (".lora_A.weight", ".lora_B.weight"),
    "default": (".lora_A.default.weight", ".lora_B.default.weight"),
    "down": (".lora_down.weight", ".lora_up.weight"),
    "bare down": (".lora_down", ".lora_up"),
    "lora.down": (".lora.down.weight", ".lora.up.weight"),
    "lora_a": (".lora_a", ".lora_b"),
}


@dataclass
class Factors:
    """A, B of every native module in the order of the stacked native layout, and alpha / rank."""

    a: dict[str, np.ndarray]
    b: dict[str, np.ndarray]
    scale: float = 1.0
    files: dict[str, np.ndarray] = field(default_factory=dict)

    def delta(self, native: str) -> np.ndarray:
        """float64 [rows, columns], stacked q, k, v and [gate; up]."""
        return self.scale * (self.b[native].astype(np.float64) @ self.a[native].astype(np.float64))


def random_factors(names: tuple[str, ...] = tuple(NATIVE), *, rank: int = 2, seed: int = 0) -> Factors:
    """Factors of small random numbers."""
    rng = np.random.default_rng(seed)
    a = {n: rng.standard_normal((rank, NATIVE[n][1])).astype(np.float32) for n in names}
    b = {n: rng.standard_normal((NATIVE[n][0], rank)).astype(np.float32) for n in names}
    return Factors(a, b)


def interleaved(rows: np.ndarray) -> np.ndarray:
    """Stacked [q; k; v] to rows that are grouped per head, row by row."""
    out = np.empty_like(rows)
    for part in range(3):
        for head in range(HEADS):
            for i in range(WIDTH):
                out[(head * 3 + part) * WIDTH + i] = rows[(part * HEADS + head) * WIDTH + i]
    return out


def up_gate(rows: np.ndarray) -> np.ndarray:
    """[gate; up] to [up; gate]."""
    return np.concatenate([rows[FFN:], rows[:FFN]])


def diffusers_name(native: str) -> str:
    """The module that diffusers has for a native one (not q, k, v)."""
    if native in DIFFUSERS:
        return DIFFUSERS[native]
    block = next(b for b in ("token_refiner.blocks.0", "blocks.0", "blocks.1") if native.startswith(b + "."))
    return f"{DIFFUSERS[block]}.{DIFFUSERS[native.removeprefix(block + '.')]}"


def in_native_names(factors: Factors, *, grouped: bool = False) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Module -> A, B as a trainer on the native layout has them."""
    return {
        name: (a, interleaved(factors.b[name]) if grouped and name.endswith("qkv_proj") else factors.b[name])
        for name, a in factors.a.items()
    }


def in_flat_names(factors: Factors) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same, with dots turned into underscores."""
    return {name.replace(".", "_"): pair for name, pair in in_native_names(factors).items()}


def in_diffusers_names(factors: Factors) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same, q, k and v apart."""
    found = {}
    for name, a in factors.a.items():
        b = factors.b[name]
        if name.endswith("qkv_proj"):
            block = DIFFUSERS[name.removesuffix(".attn.qkv_proj")]
            for part, letter in enumerate("qkv"):
                found[f"{block}.attn.to_{letter}"] = (a, b[part * INNER : (part + 1) * INNER])
        else:
            found[diffusers_name(name)] = (a, up_gate(b) if name.endswith("mlp.fc1") else b)
    return found


def write(
    path: Path,
    modules: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    prefix: str = "",
    suffix: str = "lora_A",
    alpha: float | None = None,
    header: dict[str, str] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A safetensors file with an A and a B for every module, an alpha each if told."""
    down, up = SUFFIXES[suffix]
    tensors: dict[str, np.ndarray] = dict(more or {})
    for name, (a, b) in modules.items():
        tensors[prefix + name + down], tensors[prefix + name + up] = np.ascontiguousarray(a), np.ascontiguousarray(b)
        if alpha is not None:
            tensors[f"{prefix}{name}.alpha"] = np.array(alpha, np.float32)
    save_file(tensors, path, header)
    return path
