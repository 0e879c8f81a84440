"""Sizes of the transformer, read from either layout's config.json (spec/checkpoint.md 1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from h3serve.core.errors import CheckpointError

MODALITIES = 3  # video 0, text 1, audio 2
VECTORS = 6  # shift, scale, gate for the attention, then for the MLP

# Our name -> the original layout's, where they differ. All other names are shared by both layouts.
_ORIGINAL = {
    "num_refiner_layers": "token_refiner_num_layers",
    "ffn_dim": "ffn_hidden_size",
    "in_channels": "latents_dim",
    "audio_in_channels": "audio_latents_dim",
    "freq_dim": "timestep_input_dim",
    "time_embed_hidden_dim": "time_embed_hidden_size",
    "rope_freq_dim": "rope_inv_freq_len",
}


@dataclass(frozen=True)
class TransformerConfig:
    """Widths and depths; the defaults are the released model's."""

    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    num_attention_heads: int = 56
    attention_head_dim: int = 128
    ffn_dim: int = 14336
    in_channels: int = 24
    audio_in_channels: int = 32
    patch_size: tuple[int, int, int] = (1, 2, 2)  # latent frames, rows, columns
    text_dim: int = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16  # frequencies per axis
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5

    @property
    def inner_dim(self) -> int:
        """Width of all heads together; larger than hidden_size."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def video_row_dim(self) -> int:
        """Numbers in one video row."""
        return self.in_channels * prod(self.patch_size)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """Reads either layout's config.json; CheckpointError names what is missing or unknown."""
        values = {name: value for name, value in values.items() if not name.startswith("_")}
        derived = {name: values.pop(name) for name in _DERIVED if name in values}
        read = {f.name: _take(values, f.name) for f in fields(cls)}
        if values:
            raise CheckpointError(f"transformer config: {', '.join(sorted(values))} is not understood")
        config = cls(**read)
        for name, value in derived.items():
            expected = _DERIVED[name] * config.hidden_size
            if value != expected:
                raise CheckpointError(f"transformer config: {name} is {value!r}, not {expected}")
        return config


_DERIVED = {"adaln_out_features": MODALITIES * VECTORS, "final_adaln_out_features": 2}
_OPTIONAL = {"rope_theta": 10000.0}  # the original layout does not spell it


def _take(values: dict[str, Any], name: str) -> Any:
    """Takes one size out of `values`, whichever of its two names it has, and checks its kind."""
    for spelling in (name, _ORIGINAL.get(name, name)):
        if spelling in values:
            return _checked(spelling, values.pop(spelling))
    if name in _OPTIONAL:
        return _OPTIONAL[name]
    spellings = " or ".join(dict.fromkeys((name, _ORIGINAL.get(name, name))))
    raise CheckpointError(f"transformer config: {spellings} is missing")


def _checked(name: str, value: Any) -> Any:
    if name == "patch_size":
        sizes = tuple(value) if isinstance(value, list | tuple) else ()
        if len(sizes) == 3 and all(_is_positive(size, int) for size in sizes):
            return sizes
        raise CheckpointError(f"transformer config: patch_size is {value!r}, not three sizes")
    if not _is_positive(value, float if name.endswith(("_eps", "_theta")) else int):
        raise CheckpointError(f"transformer config: {name} is {value!r}, not a positive number")
    return value


def _is_positive(value: Any, kind: type[int] | type[float]) -> bool:
    allowed = int if kind is int else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool) and value > 0
