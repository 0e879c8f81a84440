"""Takes the weight of padded keys out of a finished attention, in Triton."""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["lse_head", "count"])  # one kernel for all lengths
def _without_padding(
    out,
    logsumexp,
    q,
    key,
    heads,
    q_stride,
    lse_head,
    lse_row,
    count,
    scale,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = head < heads
    column = tl.arange(0, HEAD_DIM)[None, :]
    here = inside[:, None]
    query = tl.load(q + row * q_stride + head[:, None] * HEAD_DIM + column, mask=here, other=0.0).to(tl.float32)
    padded = tl.load(key + head[:, None] * HEAD_DIM + column, mask=here, other=0.0).to(tl.float32)
    score = tl.sum(query * padded, axis=1) * scale
    weight = count * tl.exp(score - tl.load(logsumexp + head * lse_head + row * lse_row, mask=inside, other=0.0))
    at = out + (row * heads + head)[:, None] * HEAD_DIM + column
    value = tl.load(at, mask=here, other=0.0).to(tl.float32) * (1.0 / (1.0 - weight))[:, None]
    tl.store(at, value.to(out.dtype.element_ty), mask=here)


def without_padding(
    out: torch.Tensor, logsumexp: torch.Tensor, *, q: torch.Tensor, key: torch.Tensor, count: int
) -> torch.Tensor:
    """`out` [S, heads, head_dim], in place: `count` keys equal to `key`, whose values were zero, are forgotten.

    `logsumexp` float32 [heads, S] is that of all keys.
    """
    rows, heads, head_dim = out.shape
    assert out.is_contiguous() and key.is_contiguous()
    assert q.stride(2) == 1 and q.stride(1) == head_dim
    block = min(16, triton.next_power_of_2(heads))
    sizes = (heads, q.stride(0), *logsumexp.stride(), count, head_dim**-0.5)
    grid = (rows, triton.cdiv(heads, block))
    _without_padding[grid](out, logsumexp, q, key, *sizes, HEAD_DIM=head_dim, HEADS=block, num_warps=4)
    return out
