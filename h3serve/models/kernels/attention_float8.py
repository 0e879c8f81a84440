"""Attention on 8-bit floats, in Triton: both products on e4m3 operands, the softmax between them in float32.

Queries and keys are normalized, so they are rounded as they are; keys lose their common part before, which no softmax
sees. Values get a scale per head. Import this file only where Triton is; Hopper and Ada, or Triton's interpreter.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from h3serve.models.kernels.float8_rows import FLOAT8, LARGEST, SMALLEST_SCALE

_QUERIES, _KEYS, _WARPS, _STAGES = 64, 128, 4, 3  # per program; of the tiles that were tried the quickest on Hopper
_ROWS = 64  # per program of the rounding
_SAMPLE = 1024  # rows that the common part of keys and the size of values are taken of
_VALUE_RMS = 4.0  # of rounded values: a hundredth of e4m3's largest, 256 times its smallest normal number
_LARGEST = tl.constexpr(LARGEST)
_SHIFT = tl.constexpr(8.0)  # probabilities are rounded times 2^8: e4m3 has no small numbers


@triton.jit
def _to_float8(value):
    return tl.clamp(value, -_LARGEST, _LARGEST).to(tl.float8e4nv)


@triton.jit
def _load_head(at, row, stride, rows, HEAD_DIM: tl.constexpr):
    columns = tl.arange(0, HEAD_DIM)
    return tl.load(at + row[:, None] * stride + columns[None, :], mask=(row < rows)[:, None], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])  # one kernel for all lengths
def _round(
    q, k, v, common, scale, q8, k8, v8, rows, padded, q_stride, k_stride, v_stride, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Some rows of one head: q and k to [heads, padded, dim], v to [heads, dim, padded]; rows past the end are zero."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HEAD_DIM)
    at = head * padded * HEAD_DIM
    straight = at + row[:, None] * HEAD_DIM + columns[None, :]
    tl.store(q8 + straight, _to_float8(_load_head(q + head * HEAD_DIM, row, q_stride, rows, HEAD_DIM)))
    key = _load_head(k + head * HEAD_DIM, row, k_stride, rows, HEAD_DIM)
    key -= tl.load(common + head * HEAD_DIM + columns).to(tl.float32)[None, :]
    tl.store(k8 + straight, _to_float8(tl.where((row < rows)[:, None], key, 0.0)))
    value = _load_head(v + head * HEAD_DIM, row, v_stride, rows, HEAD_DIM) / tl.load(scale + head)
    tl.store(v8 + at + columns[:, None] * padded + row[None, :], tl.trans(_to_float8(value)))


@triton.jit
def _add_keys(
    acc, total, top, query, k8, v8, start, rows, padded, scale, HEAD_DIM: tl.constexpr, KEYS: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """One tile of keys and values into the running sums; `top` is each query's largest score so far, times `scale`."""
    columns = tl.arange(0, HEAD_DIM)
    row = start + tl.arange(0, KEYS)
    key = tl.load(k8 + row[:, None] * HEAD_DIM + columns[None, :])
    score = tl.dot(query, tl.trans(key))
    if LAST:
        score = tl.where((row < rows)[None, :], score, -float("inf"))
    above = tl.maximum(top, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - (above - _SHIFT)[:, None])
    fade = tl.exp2(top - above)
    value = tl.load(v8 + columns[:, None] * padded + row[None, :])
    acc = tl.dot(weight.to(tl.float8e4nv), tl.trans(value), acc * fade[:, None])
    return acc, total * fade + tl.sum(weight, 1), above


@triton.jit(do_not_specialize=["rows"])
def _attend(
    q8, k8, v8, value_scale, out, rows, padded, heads, scale, HEAD_DIM: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    columns = tl.arange(0, HEAD_DIM)
    at = head * padded * HEAD_DIM
    query = tl.load(q8 + at + row[:, None] * HEAD_DIM + columns[None, :])
    acc = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    whole = rows // KEYS * KEYS
    for start in range(0, whole, KEYS):
        acc, total, top = _add_keys(
            acc, total, top, query, k8 + at, v8 + at, start, rows, padded, scale, HEAD_DIM, KEYS, False
        )  # fmt: skip
    if whole < rows:
        acc, total, top = _add_keys(
            acc, total, top, query, k8 + at, v8 + at, whole, rows, padded, scale, HEAD_DIM, KEYS, True
        )  # fmt: skip
    acc *= (tl.load(value_scale + head) / total)[:, None]
    place = out + (row.to(tl.int64)[:, None] * heads + head) * HEAD_DIM + columns[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=(row < rows)[:, None])


def attention8(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q, k, v -> out, all [S, heads, head_dim], as `attention.Attention`; error in docs/speed.md."""
    rows, heads, head_dim = q.shape
    assert all(part.stride(2) == 1 and part.stride(1) == head_dim for part in (q, k, v))
    tile = max(_QUERIES, _KEYS, _ROWS)
    padded = triton.cdiv(rows, tile) * tile
    q8, k8, v8 = q.new_empty(3, heads, padded * head_dim, dtype=FLOAT8)
    every = max(1, rows // _SAMPLE)
    common = k[::every].float().mean(0)
    size = v[::every].float().square().mean((0, 2)).sqrt()
    value_scale = (size / _VALUE_RMS).clamp(min=SMALLEST_SCALE)
    strides = (q.stride(0), k.stride(0), v.stride(0))
    parts = (q, k, v, common, value_scale, q8, k8, v8)
    _round[(triton.cdiv(padded, _ROWS), heads)](*parts, rows, padded, *strides, HEAD_DIM=head_dim, ROWS=_ROWS)
    out = torch.empty(rows, heads, head_dim, dtype=q.dtype, device=q.device)
    scale = head_dim**-0.5 / math.log(2)
    _attend[(triton.cdiv(rows, _QUERIES), heads)](
        *(q8, k8, v8, value_scale, out, rows, padded, heads, scale),
        HEAD_DIM=head_dim,
        QUERIES=_QUERIES,
        KEYS=_KEYS,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return out
