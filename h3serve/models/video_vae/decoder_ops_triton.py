"""`decoder_ops.py` as Triton kernels: float32 from load to store, one rounding, every value read and written once.

The residual stream is overwritten in place. Import this file only where Triton is.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import nn

from h3serve.models.kernels import elementwise_triton
from h3serve.models.kernels.elementwise import QKV, Rope
from h3serve.models.kernels.elementwise_triton import load_columns
from h3serve.models.video_vae import decoder_ops
from h3serve.models.video_vae.decoder_ops import DecoderOps, sdpa

_WARPS = 4


@triton.jit
def _norm(x, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = load_columns(x + row * width, columns, inside)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / width + eps) * load_columns(weight, columns, inside)
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scaled_add_norm(x, update, scale, weight, out, width, eps, NORM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = load_columns(x + row * width, columns, inside)
    value += load_columns(update + row * width, columns, inside) * load_columns(scale, columns, inside)
    tl.store(x + row * width + columns, value.to(x.dtype.element_ty), mask=inside)
    if NORM:
        value *= tl.rsqrt(tl.sum(value * value, axis=0) / width + eps) * load_columns(weight, columns, inside)
        tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


def norm(x: torch.Tensor, layer: nn.RMSNorm, dtype: torch.dtype) -> torch.Tensor:
    """`decoder_ops.norm`; its rows are x's last axis."""
    x, width = x.contiguous(), x.shape[-1]
    out, block = torch.empty_like(x, dtype=dtype), triton.next_power_of_2(width)
    _norm[(x.numel() // width,)](x, layer.weight, out, width, layer.eps, BLOCK=block, num_warps=_WARPS)
    return out


def scaled_add(x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`decoder_ops.scaled_add`; x is overwritten."""
    return _add(x, update, scale, None)[0]


def scaled_add_norm(
    x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, layer: nn.RMSNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """`decoder_ops.scaled_add_norm`; x is overwritten."""
    return _add(x, update, scale, layer)


def _add(
    x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, layer: nn.RMSNorm | None
) -> tuple[torch.Tensor, torch.Tensor]:
    assert x.is_contiguous() and update.is_contiguous() and scale.is_contiguous()
    width = x.shape[-1]
    weight, eps, out = (scale, 0.0, update) if layer is None else (layer.weight, layer.eps, torch.empty_like(update))
    _scaled_add_norm[(x.numel() // width,)](
        x,
        update,
        scale,
        weight,
        out,
        width,
        eps,
        NORM=layer is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_WARPS,
    )
    return x, out


def qk_norm_rope(qkv: torch.Tensor, eps: float, rope: Rope) -> QKV:
    """`decoder_ops.qk_norm_rope`; q and k are overwritten in qkv and returned as views."""
    gain = _ones(qkv.shape[-1], qkv.dtype, qkv.device)
    elementwise_triton.turn_heads(qkv.flatten(0, 1), (gain, gain), rope, eps=eps)
    q, k, v = qkv.unbind(2)
    return q, k, v


def gated_linear(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """`elementwise.gated_linear` on [B, N, in]."""
    out = elementwise_triton.swiglu(layer(x).flatten(0, 1))
    assert isinstance(out, torch.Tensor)
    return out.unflatten(0, x.shape[:2])


def project(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """`decoder_ops.project` on the matrix units: three products of float16 halves, summed in float32.

    Of float32's 24 bits the matrix units' sums keep about 17, a hundredth of what the decoder's float16 costs. x is
    normalized, so that its halves are in range, and so are weights.
    """
    assert isinstance(layer, nn.Linear) and layer.bias is not None
    if not x.is_cuda:
        return decoder_ops.project(x, layer)  # a CPU has no such product
    rows, weight = x.flatten(0, -2), layer.weight
    high, weight_high = rows.half(), weight.half()
    low, weight_low = (rows - high).half(), (weight - weight_high).half()
    left = torch.cat([high, low, high], dim=1)
    right = torch.cat([weight_high, weight_high, weight_low], dim=1)
    out = torch.mm(left, right.t(), out_dtype=torch.float32)
    return out.add_(layer.bias).unflatten(0, x.shape[:-1])


@lru_cache(maxsize=8)
def _ones(width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(width, dtype=dtype, device=device)


FUSED = DecoderOps(norm, scaled_add, scaled_add_norm, qk_norm_rope, gated_linear, sdpa, project)
