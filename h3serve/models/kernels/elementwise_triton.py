"""The element-wise ops of a block as Triton kernels: every value is read and written once.

Arithmetic is float32 from load to store with one rounding, so it is closer to a float32 run than the reference
order of `ops.py`, and unlike it in the last bits. What goes into a linear layer can be written as `Float8Rows`
at once, so that quantizing costs no pass of its own. Import this file only where Triton is; kernels need a CUDA
device, or Triton's interpreter on a CPU.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import nn

from h3serve.models.kernels.elementwise import QKV, LinearInput, Ops, Rope
from h3serve.models.kernels.float8_rows import FLOAT8, LARGEST, SMALLEST_SCALE, Float8Rows

_COLUMNS = 2048  # per program of the kernels that need no whole row
_WARPS = 8  # 16-byte accesses and under 128 registers at the released widths
_HEADS, _HEAD_WARPS = 8, 2  # per program of the kernel that needs whole heads
_LARGEST = tl.constexpr(LARGEST)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def load_columns(at, columns, inside):
    return tl.load(at + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _merged(weight, shift, scale, factor, offset, width, table_stride, BLOCK: tl.constexpr):
    """An entry's gain and scale as one float32 factor, and its shift: what rows then read needs no work."""
    entry = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = entry * table_stride
    value = load_columns(weight, columns, inside) * (1.0 + load_columns(scale + at, columns, inside))
    tl.store(factor + entry * width + columns, value, mask=inside)
    tl.store(offset + entry * width + columns, load_columns(shift + at, columns, inside), mask=inside)


@triton.jit
def _modulated(value, factor, offset, columns, inside, width, eps):
    """RMSNorm of a whole row, then its modulation."""
    value *= tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    return value * load_columns(factor, columns, inside) + load_columns(offset, columns, inside)


@triton.jit
def _store(out, out_scale, row, width, columns, inside, value):
    """One rounding to the type of `out`; to 8 bits after scaling by the largest of the row, which has to be whole."""
    if out.dtype.element_ty == tl.float8e4nv:
        scale = tl.maximum(tl.max(tl.abs(value), axis=0) / _LARGEST, _SMALLEST_SCALE)
        tl.store(out_scale + row, scale)
        value *= 1.0 / scale
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_modulate(x, factor, offset, index, out, out_scale, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = load_columns(x + row * width, columns, inside)
    entry = tl.load(index + row) * width
    value = _modulated(value, factor + entry, offset + entry, columns, inside, width, eps)
    _store(out, out_scale, row, width, columns, inside, value)


@triton.jit
def _gated_add(x, gate, index, update, out, width, table_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    entry = tl.load(index + row) * table_stride
    value = load_columns(x + row * width, columns, inside)
    value += load_columns(gate + entry, columns, inside) * load_columns(update + row * width, columns, inside)
    tl.store(out + row * width + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_add_norm(
    x, gate, index, update, total, factor, offset, out, out_scale, width, gate_stride, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    value = load_columns(x + row * width, columns, inside)
    added = load_columns(update + row * width, columns, inside)
    entry = tl.load(index + row)
    value += load_columns(gate + entry * gate_stride, columns, inside) * added
    tl.store(total + row * width + columns, value.to(total.dtype.element_ty), mask=inside)
    value = _modulated(value, factor + entry * width, offset + entry * width, columns, inside, width, eps)
    _store(out, out_scale, row, width, columns, inside, value)


@triton.jit
def _swiglu(gate_up, out, out_scale, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = load_columns(gate_up + row * 2 * width, columns, inside)
    value = gate / (1.0 + tl.exp(-gate)) * load_columns(gate_up + row * 2 * width + width, columns, inside)
    _store(out, out_scale, row, width, columns, inside, value)


@triton.jit
def _quantize_rows(x, out, out_scale, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    _store(out, out_scale, row, width, columns, inside, load_columns(x + row * width, columns, inside))


@triton.jit
def _load_part(at, start, size, inside, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)[None, :]
    return tl.load(at + columns, mask=inside & (columns < start + size), other=0.0).to(tl.float32)


@triton.jit
def _store_part(at, start, size, inside, value, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)[None, :]
    mask = inside & (columns < start + size)
    tl.store(at + columns, value.to(at.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["period"])  # lengths differ from request to request: one kernel for all
def _qk_norm_rope(
    qkv,
    q_weight,
    k_weight,
    cos,
    sin,
    heads,
    period,  # rows after which the tables start anew
    eps,
    TURNED: tl.constexpr,  # pairs of a head are (d, d + TURNED)
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Some heads of q or of k of one row, in place; a head is three parts: first and second ends of the pairs, rest."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    part = tl.program_id(2)
    inside = head < heads
    rest_size: tl.constexpr = HEAD_DIM - 2 * TURNED
    at = qkv + ((row * 3 + part) * heads + head) * HEAD_DIM
    first = _load_part(at, 0, TURNED, inside, HALF)
    second = _load_part(at, TURNED, TURNED, inside, HALF)
    rest = _load_part(at, 2 * TURNED, rest_size, inside, REST)
    everywhere = (row % period) * TURNED + 0 * head  # gains and tables are read per head: no exchange of layouts
    c = _load_part(cos + everywhere, 0, TURNED, inside, HALF)
    s = _load_part(sin + everywhere, 0, TURNED, inside, HALF)
    weight = tl.where(part == 0, q_weight, k_weight) + 0 * head
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
    inverse = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
    first *= inverse * _load_part(weight, 0, TURNED, inside, HALF)
    second *= inverse * _load_part(weight, TURNED, TURNED, inside, HALF)
    rest *= inverse * _load_part(weight, 2 * TURNED, rest_size, inside, REST)
    tl.debug_barrier()  # several threads may hold one element: all have read before one writes
    _store_part(at, 0, TURNED, inside, first * c - second * s, HALF)
    _store_part(at, TURNED, TURNED, inside, second * c + first * s, HALF)
    _store_part(at, 2 * TURNED, rest_size, inside, rest, REST)


class _Output:
    """Where a kernel puts what goes into a linear layer: a tensor like `like`, or `Float8Rows`."""

    def __init__(self, like: torch.Tensor, width: int, float8: bool) -> None:
        self.values = like.new_empty(len(like), width, dtype=FLOAT8 if float8 else like.dtype)
        self.scale = like.new_empty(len(like), 1, dtype=torch.float32) if float8 else None

    def get(self) -> LinearInput:
        return self.values if self.scale is None else Float8Rows(self.values, self.scale)


def norm_modulate(
    x: torch.Tensor,
    norm: nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
    index: torch.Tensor,
    float8: bool = False,
) -> LinearInput:
    """`ops.norm_modulate` with one rounding."""
    x, (rows, width) = x.contiguous(), x.shape
    out, block = _Output(x, width, float8), triton.next_power_of_2(width)
    tables = _merge(norm, shift, scale)
    _norm_modulate[(rows,)](x, *tables, index, out.values, out.scale, width, norm.eps, BLOCK=block, num_warps=_WARPS)
    return out.get()


def gated_add(x: torch.Tensor, gate: torch.Tensor, index: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """`ops.gated_add` with one rounding."""
    x, update, (rows, width) = x.contiguous(), update.contiguous(), x.shape
    assert gate.stride(1) == 1
    out, grid = torch.empty_like(x), (rows, triton.cdiv(width, _COLUMNS))
    _gated_add[grid](x, gate, index, update, out, width, gate.stride(0), BLOCK=_COLUMNS, num_warps=_WARPS)
    return out


def gated_add_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    index: torch.Tensor,
    update: torch.Tensor,
    norm: nn.RMSNorm,
    shift: torch.Tensor,
    scale: torch.Tensor,
    float8: bool = False,
) -> tuple[torch.Tensor, LinearInput]:
    """`ops.gated_add_norm`, one rounding for each of the two results."""
    x, update, (rows, width) = x.contiguous(), update.contiguous(), x.shape
    assert gate.stride(1) == 1
    total, out, block = torch.empty_like(x), _Output(x, width, float8), triton.next_power_of_2(width)
    results = (total, *_merge(norm, shift, scale), out.values, out.scale)
    sizes = (width, gate.stride(0), norm.eps)
    _gated_add_norm[(rows,)](x, gate, index, update, *results, *sizes, BLOCK=block, num_warps=_WARPS)
    return total, out.get()


def _merge(norm: nn.RMSNorm, shift: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 factor and offset of every table entry, [entries, hidden] each."""
    assert shift.stride() == scale.stride() and shift.stride(1) == 1
    entries, width = shift.shape
    factor, offset = torch.empty(2, entries, width, dtype=torch.float32, device=shift.device)
    grid = (entries, triton.cdiv(width, _COLUMNS))
    _merged[grid](norm.weight, shift, scale, factor, offset, width, shift.stride(0), BLOCK=_COLUMNS, num_warps=_WARPS)
    return factor, offset


def swiglu(gate_up: torch.Tensor, float8: bool = False) -> LinearInput:
    """`ops.swiglu` with one rounding."""
    gate_up, rows, width = gate_up.contiguous(), gate_up.shape[0], gate_up.shape[1] // 2
    out = _Output(gate_up, width, float8)
    block, warps = (triton.next_power_of_2(width), 2 * _WARPS) if float8 else (_COLUMNS, _WARPS)
    grid = (rows, triton.cdiv(width, block))
    _swiglu[grid](gate_up, out.values, out.scale, width, BLOCK=block, num_warps=warps)
    return out.get()


def gated_linear(x: LinearInput, layer: nn.Module, float8: bool = False) -> LinearInput:
    """`ops.gated_linear` with one rounding after the layer's."""
    return swiglu(layer(x), float8)


def quantize_rows(x: torch.Tensor) -> Float8Rows:
    """`float8.quantize_rows` in one pass."""
    x, (rows, width) = x.contiguous(), x.shape
    out = _Output(x, width, float8=True)
    block = triton.next_power_of_2(width)
    _quantize_rows[(rows,)](x, out.values, out.scale, width, BLOCK=block, num_warps=_WARPS)
    assert out.scale is not None
    return Float8Rows(out.values, out.scale)


def qk_norm_rope(qkv: torch.Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm, rope: Rope | None) -> QKV:
    """`ops.qk_norm_rope` with one rounding; q and k are overwritten in qkv and returned as views."""
    assert rope is not None and q_norm.eps == k_norm.eps
    turn_heads(qkv, (q_norm.weight, k_norm.weight), rope, eps=q_norm.eps)
    q, k, v = qkv.unbind(1)
    return q, k, v


def turn_heads(
    qkv: torch.Tensor,
    gains: tuple[torch.Tensor, torch.Tensor],
    rope: tuple[torch.Tensor, torch.Tensor],
    *,
    eps: float | None,
) -> None:
    """In place: RMSNorm and rotation of q and k of qkv [rows, 3, heads, head_dim].

    `gains` are those of q and k; `rope` holds cos and sin [period, pairs], used over and over.
    """
    rows, _, heads, head_dim = qkv.shape
    assert qkv.is_contiguous() and all(table.is_contiguous() for table in rope)
    period, turned = rope[0].shape
    block = min(_HEADS, triton.next_power_of_2(heads))
    _qk_norm_rope[(rows, triton.cdiv(heads, block), 2)](
        qkv,
        *gains,
        *rope,
        heads,
        period,
        eps,
        TURNED=turned,
        HEAD_DIM=head_dim,
        HEADS=block,
        HALF=triton.next_power_of_2(turned),
        REST=triton.next_power_of_2(max(head_dim - 2 * turned, 1)),
        num_warps=_HEAD_WARPS,
    )


FUSED = Ops(norm_modulate, gated_add, gated_add_norm, qk_norm_rope, gated_linear)
FUSED_FLOAT8 = Ops(
    partial(norm_modulate, float8=True),
    gated_add,
    partial(gated_add_norm, float8=True),
    qk_norm_rope,
    partial(gated_linear, float8=True),
)
