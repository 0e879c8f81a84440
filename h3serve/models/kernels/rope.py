"""Rotary position embedding as the kernels take it: cos and sin of every row (spec/transformer.md 2.5)."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rope(NamedTuple):
    """cos and sin of every row's (or token's) angles, each [S, 3 * frequencies], in the compute dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


def apply_rope(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Turns the pairs (d, d + n) of each head of x [..., S, heads, head_dim]; the rest passes through."""
    cos, sin = rope.cos[:, None], rope.sin[:, None]
    n = cos.shape[-1]
    first, second, rest = x.split((n, n, x.shape[-1] - 2 * n), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
