"""The element-wise ops of a block as Triton kernels: every value is read and written once.

Arithmetic is float32 from load to store with one rounding, so it is closer to a float32 run than the reference
order of `ops.py`, and unlike it in the last bits. Import this file only where Triton is; kernels need a CUDA
device, or Triton's interpreter on a CPU.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn

from h3serve.models.ops import QKV, Ops
from h3serve.models.rope import Rope

_COLUMNS = 2048  # per program of the kernels that need no whole row
_WARPS = 8  # 16-byte accesses and under 128 registers at the released widths


@triton.jit
def _norm_modulate(x, weight, shift, scale, index, out, width, table_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    entry = tl.load(index + row) * table_stride
    value = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    value *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    factor = 1.0 + tl.load(scale + entry + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(shift + entry + columns, mask=inside, other=0.0).to(tl.float32)
    value = value * factor + offset
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_add(x, gate, index, update, out, width, table_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = row * width + columns
    entry = tl.load(index + row) * table_stride
    factor = tl.load(gate + entry + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += factor * tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = gate_up + row * 2 * width + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _load_part(at, start, size, inside, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)[None, :]
    return tl.load(at + columns, mask=inside & (columns < start + size), other=0.0).to(tl.float32)


@triton.jit
def _store_part(at, start, size, inside, value, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)[None, :]
    mask = inside & (columns < start + size)
    tl.store(at + columns, value.to(at.dtype.element_ty), mask=mask)


@triton.jit
def _qk_norm_rope(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    heads,
    eps,
    TURNED: tl.constexpr,  # pairs of a head are (d, d + TURNED)
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """q, then k, of one row, in place. A head is held as three parts: first and second ends of the pairs, rest."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    inside = head < heads
    rest_size: tl.constexpr = HEAD_DIM - 2 * TURNED
    everywhere = row * TURNED + 0 * head  # gains and tables are read per head: no exchange of layouts
    c = _load_part(cos + everywhere, 0, TURNED, inside, HALF)
    s = _load_part(sin + everywhere, 0, TURNED, inside, HALF)
    for part in tl.static_range(2):
        weight = (q_weight if part == 0 else k_weight) + 0 * head
        at = qkv + ((row * 3 + part) * heads + head) * HEAD_DIM
        first = _load_part(at, 0, TURNED, inside, HALF)
        second = _load_part(at, TURNED, TURNED, inside, HALF)
        rest = _load_part(at, 2 * TURNED, rest_size, inside, REST)
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
        inverse = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        first *= inverse * _load_part(weight, 0, TURNED, inside, HALF)
        second *= inverse * _load_part(weight, TURNED, TURNED, inside, HALF)
        rest *= inverse * _load_part(weight, 2 * TURNED, rest_size, inside, REST)
        tl.debug_barrier()  # several threads may hold one element: all have read before one writes
        _store_part(at, 0, TURNED, inside, first * c - second * s, HALF)
        _store_part(at, TURNED, TURNED, inside, second * c + first * s, HALF)
        _store_part(at, 2 * TURNED, rest_size, inside, rest, REST)


def norm_modulate(
    x: torch.Tensor,
    norm: nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """`ops.norm_modulate` with one rounding."""
    x, (rows, width) = x.contiguous(), x.shape
    assert shift.stride() == scale.stride() and shift.stride(1) == 1
    out, block = torch.empty_like(x), triton.next_power_of_2(width)
    _norm_modulate[(rows,)](
        x, norm.weight, shift, scale, index, out, width, shift.stride(0), norm.eps, BLOCK=block, num_warps=_WARPS
    )
    return out


def gated_add(x: torch.Tensor, gate: torch.Tensor, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """`ops.gated_add` with one rounding."""
    x, update, (rows, width) = x.contiguous(), update.contiguous(), x.shape
    assert gate.stride(1) == 1
    out, grid = torch.empty_like(x), (rows, triton.cdiv(width, _COLUMNS))
    _gated_add[grid](x, gate, index, update, out, width, gate.stride(0), BLOCK=_COLUMNS, num_warps=_WARPS)
    return out


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`ops.swiglu` with one rounding."""
    gate_up, rows, width = gate_up.contiguous(), gate_up.shape[0], gate_up.shape[1] // 2
    out, grid = gate_up.new_empty(rows, width), (rows, triton.cdiv(width, _COLUMNS))
    _swiglu[grid](gate_up, out, width, BLOCK=_COLUMNS, num_warps=_WARPS)
    return out


def qk_norm_rope(qkv: torch.Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm, rope: Rope | None) -> QKV:
    """`ops.qk_norm_rope` with one rounding; q and k are overwritten in qkv and returned as views."""
    rows, _, heads, head_dim = qkv.shape
    assert rope is not None and qkv.is_contiguous() and q_norm.eps == k_norm.eps
    turned = rope.cos.shape[1]
    _qk_norm_rope[(rows,)](
        qkv,
        q_norm.weight,
        k_norm.weight,
        rope.cos,
        rope.sin,
        heads,
        q_norm.eps,
        TURNED=turned,
        HEAD_DIM=head_dim,
        HEADS=triton.next_power_of_2(heads),
        HALF=triton.next_power_of_2(turned),
        REST=triton.next_power_of_2(max(head_dim - 2 * turned, 1)),
        num_warps=_WARPS,
    )
    q, k, v = qkv.unbind(1)
    return q, k, v


FUSED = Ops(norm_modulate, qk_norm_rope, swiglu, gated_add)
