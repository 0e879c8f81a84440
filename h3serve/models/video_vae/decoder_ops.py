"""The element-wise pieces of the video decoder's blocks, as a set that can be exchanged whole.

Rotation and SwiGLU are the transformer's (`kernels/elementwise.py`). This file is the reference for the rest, in plain
torch (spec/vae_video.md 5.5): float32 residual stream and norms, everything else in the dtype of the matrices. A
fused set computes the same with fewer passes over memory and fewer roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from h3serve.models.kernels.elementwise import QKV, Rope, apply_rope, gated_linear


@dataclass(frozen=True)
class DecoderOps:
    """Residual x is float32 [B, N, width]; an update and what goes into a matrix have the matrices' dtype."""

    norm: Callable[[torch.Tensor, nn.RMSNorm, torch.dtype], torch.Tensor]
    scaled_add: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # x, update, scale [width]
    scaled_add_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]  # x, update, scale, norm
    qk_norm_rope: Callable[[torch.Tensor, float, Rope], QKV]  # qkv [B, N, 3, heads, dim], eps, rope
    gated_linear: Callable[..., torch.Tensor]  # x, layer to [B, N, 2F], gate first -> [B, N, F]
    attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # q, k, v [B, N, heads, dim]
    project: Callable[[torch.Tensor, nn.Module], torch.Tensor]  # x, float32 layer: the last one


def norm(x: torch.Tensor, layer: nn.RMSNorm, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm in float32, then rounded."""
    return layer(x).to(dtype)


def scaled_add(x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The residual stream plus the update times a scale per channel."""
    return x + update * scale


def scaled_add_norm(
    x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, layer: nn.RMSNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new residual stream, and its norm in the dtype of the update."""
    x = scaled_add(x, update, scale)
    return x, norm(x, layer, update.dtype)


def qk_norm_rope(qkv: torch.Tensor, eps: float, rope: Rope) -> QKV:
    """Queries and keys normalized in float32, without gain, rounded, then rotated."""
    q, k, v = qkv.unbind(2)
    q, k = (F.rms_norm(part.float(), part.shape[-1:], eps=eps).to(part.dtype) for part in (q, k))
    return apply_rope(q, rope), apply_rope(k, rope), v


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Full attention within each of the batch."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def project(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """The layer itself."""
    projected: torch.Tensor = layer(x)
    return projected


PLAIN = DecoderOps(norm, scaled_add, scaled_add_norm, qk_norm_rope, gated_linear, sdpa, project)
