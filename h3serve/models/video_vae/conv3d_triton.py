"""3x3x3 convolutions of channels-last video as matrix products on shifted rows, in Triton.

An operand is laid out so that every tap of the kernel reads rows that stand next to each other: `Operand`. For a
tile of outputs, tap after tap, a block of rows at another offset is multiplied by that tap's matrix; nothing is
unfolded in memory. Operands are float16 (10 bits of mantissa, as many as TF32), sums and results float32.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from h3serve.models.video_vae.video_encoder import FUSED_CHANNELS

_BLOCK_K = FUSED_CHANNELS
_STAGES = 4
_WARPS = 8


@dataclass(frozen=True)
class Operand:
    """`rows` float16 [batch * frames * stride**2 * height * width, channels], padding included.

    With stride 2 a frame is four planes, by the parity of row and column: what a stride skips is elsewhere.
    `scale` is None, or float32 [1]: what results have to be multiplied by.
    """

    rows: torch.Tensor
    batch: int
    frames: int
    height: int
    width: int
    stride: int
    scale: torch.Tensor | None = None


@triton.jit
def _convolve(
    rows,
    weight,
    bias,
    scale,
    skip,
    out,
    frames,
    out_frames,
    plane_height,
    plane_width,
    out_height,
    out_width,
    out_channels,
    CHANNELS: tl.constexpr,
    TIME_STRIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    frame = tl.program_id(2)  # of the results: batch * out_frames
    first = tl.program_id(1) * BLOCK_M
    column = tl.program_id(0) * BLOCK_N
    planes: tl.constexpr = STRIDE * STRIDE
    source = (frame // out_frames) * frames + (frame % out_frames) * TIME_STRIDE
    start = source * planes * plane_height * plane_width + first
    # Rows run over whole lines of a plane: those in the padding are dropped.
    place = first + tl.arange(0, BLOCK_M)
    y, x = place // plane_width, place % plane_width
    n = column + tl.arange(0, BLOCK_N)
    inside = ((y < out_height) & (x < out_width))[:, None] & (n < out_channels)[None, :]
    to = ((frame * out_height + y).to(tl.int64) * out_width + x)[:, None] * out_channels + n[None, :]
    # What is added comes first: at the end there is no room for it beside the sums.
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if skip is not None:
        total += tl.load(skip + to, mask=inside, other=0.0)
    steps: tl.constexpr = CHANNELS // BLOCK_K
    for step in range(27 * steps):
        tap = step // steps
        part = (step % steps) * BLOCK_K
        dy, dx = (tap // 3) % 3, tap % 3
        plane = (tap // 9) * planes + (dy % STRIDE) * STRIDE + dx % STRIDE
        at = start + (plane * plane_height + dy // STRIDE) * plane_width + dx // STRIDE
        a = rows.load([at, part])
        b = weight.load([column, tap * CHANNELS + part])
        total = tl.dot(a, b.T, total)
    if scale is not None:
        total *= tl.load(scale)
    total += tl.load(bias + n, mask=n < out_channels, other=0.0)[None, :]
    tl.store(out + to, total, mask=inside)


def packed_weight(weight: torch.Tensor) -> torch.Tensor:
    """A convolution's weight [out, in, 3, 3, 3] as float16 [out, 27 * in]: tap after tap."""
    return weight.permute(0, 2, 3, 4, 1).flatten(1).half().contiguous()


def convolve(
    operand: Operand,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    time_stride: int = 1,
    skip: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 `[B, D', H', W', out]`, plus `skip` of that shape; `weight` [out, in, 3, 3, 3] and `bias` are float32.

    An operand with a scale has no skip.
    """
    assert skip is None or operand.scale is None
    out_channels, channels = weight.shape[:2]
    block_k = min(_BLOCK_K, channels)
    assert channels % block_k == 0 and block_k % 16 == 0, f"{channels} channels are not what the kernel takes"
    border = 2 if operand.stride == 1 else 1
    height, width = operand.height - border, operand.width - border
    out_frames = (operand.frames - 3) // time_stride + 1
    out = bias.new_empty(operand.batch, out_frames, height, width, out_channels)
    block_m, block_n = (128, 256) if out_channels > 128 else (256 if channels >= _BLOCK_K else 128, 128)
    packed = packed_weight(weight)
    grid = (
        triton.cdiv(out_channels, block_n),
        triton.cdiv(height * operand.width, block_m),
        operand.batch * out_frames,
    )
    _convolve[grid](
        TensorDescriptor.from_tensor(operand.rows, [block_m, block_k]),
        TensorDescriptor.from_tensor(packed, [block_n, block_k]),
        bias,
        operand.scale,
        skip,
        out,
        operand.frames,
        out_frames,
        operand.height,
        operand.width,
        height,
        width,
        out_channels,
        CHANNELS=channels,
        TIME_STRIDE=time_stride,
        STRIDE=operand.stride,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return out
