"""The element-wise pieces of a block, as a set that can be exchanged whole.

This file is the reference: plain torch, rounding to the compute dtype after every operation, in
the order of spec/transformer.md 2.5. A fused set computes the same with fewer passes over memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_rows import Float8Rows

LinearInput = torch.Tensor | Float8Rows
QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Rope(NamedTuple):
    """cos and sin of every row's (or token's) angles, each [S, 3 * frequencies], in the compute dtype."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class Ops:
    """Rows x are [S, hidden]; a modulation table is [rows, hidden], read at index [S].

    What goes into a linear layer is a tensor, or `Float8Rows` where the set is made for 8-bit layers.
    """

    norm_modulate: Callable[..., LinearInput]  # x, norm, shift, scale, index
    gated_add: Callable[..., torch.Tensor]  # x, gate, index, update
    gated_add_norm: Callable[..., tuple[torch.Tensor, LinearInput]]  # x, gate, index, update, norm, shift, scale
    qk_norm_rope: Callable[..., QKV]  # qkv [S, 3, heads, head_dim], q_norm, k_norm, rope or None
    gated_linear: Callable[[LinearInput, nn.Module], LinearInput]  # x, linear layer to [S, 2F], gate first -> [S, F]


def norm_modulate(
    x: torch.Tensor,
    norm: nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """RMSNorm (float32 statistics), then times 1 + scale, plus shift, of the row's table entry."""
    return norm(x) * (1 + scale).index_select(0, index) + shift.index_select(0, index)


def apply_rope(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Turns the pairs (d, d + n) of each head of x [..., S, heads, head_dim]; the rest passes through."""
    cos, sin = rope.cos[:, None], rope.sin[:, None]
    n = cos.shape[-1]
    first, second, rest = x.split((n, n, x.shape[-1] - 2 * n), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def qk_norm_rope(qkv: torch.Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm, rope: Rope | None) -> QKV:
    """RMSNorm over each head of q and k, then rotation (None: no positions, the refiner)."""
    q, k, v = qkv.unbind(1)
    q, k = q_norm(q), k_norm(k)
    if rope is not None:
        q, k = apply_rope(q, rope), apply_rope(k, rope)
    return q, k, v


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) * up; the SiLU rounds before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_linear(x: LinearInput, layer: nn.Module) -> torch.Tensor:
    """SwiGLU of a linear layer."""
    return swiglu(layer(x))


def gated_add(x: torch.Tensor, gate: torch.Tensor, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """The residual stream plus gate * update; the gate is used as it is."""
    return x + gate.index_select(0, index) * update


def gated_add_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    index: torch.Tensor,
    update: torch.Tensor,
    norm: nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new residual stream, and its norm and modulation."""
    x = gated_add(x, gate, index, update)
    return x, norm_modulate(x, norm, shift, scale, index)


PLAIN = Ops(norm_modulate, gated_add, gated_add_norm, qk_norm_rope, gated_linear)
