"""Rotary position embedding over three axes: time, height, width (spec/transformer.md 2.5)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from h3serve.models.transformer_config import TransformerConfig


class Rope(NamedTuple):
    """cos and sin of every row's angles, each [S, 3 * frequencies], in the compute dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


def inverse_frequencies(config: TransformerConfig) -> torch.Tensor:
    """float32 [frequencies], one set for all axes; made on the CPU, since pow differs on a GPU."""
    count = config.rope_freq_dim
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32, device="cpu") / (2 * count)
    return 1.0 / config.rope_theta**exponents


def rope_tables(positions: torch.Tensor, config: TransformerConfig, dtype: torch.dtype) -> Rope:
    """Tables for positions [S, 3] (t, h, w), rounded to float32 first; the angles stay float32."""
    frequencies = inverse_frequencies(config).to(positions.device)
    angles = (positions.float()[:, :, None] * frequencies).flatten(1)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))


def apply_rope(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Turns the pairs (d, d + n) of each head of x [S, heads, head_dim]; the rest passes through."""
    cos, sin = rope.cos[:, None], rope.sin[:, None]
    n = cos.shape[-1]
    first, second, rest = x.split((n, n, x.shape[-1] - 2 * n), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
