"""The video encoder's levels on a GPU: channels-last, normalization and padding in the pass that makes an operand.

The residual stream stays float32. Import this file only where Triton is.
"""

# Kernels have no types a checker knows.
# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from h3serve.models.fused_conv import Operand, convolve
from h3serve.models.video_encoder import HALF_EXPONENT, Downsample, Level, ResBlock

_ELEMENTS = 8192  # per program
_WARPS = 8


@triton.jit
def _chunk_statistics(x, means, squares, channels, PIXELS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr):
    """Mean, and sum of squared distances from it, of each group in a chunk of pixels of one frame."""
    chunk = tl.program_id(0).to(tl.int64)
    pixel = chunk * PIXELS + tl.arange(0, PIXELS)
    column = tl.arange(0, GROUPS * SIZE)
    value = tl.load(x + pixel[:, None] * channels + column[None, :])
    value = tl.reshape(value, (PIXELS, GROUPS, SIZE))
    mean = tl.sum(tl.sum(value, axis=0), axis=1) / (PIXELS * SIZE)
    value -= mean[None, :, None]
    group = tl.arange(0, GROUPS)
    tl.store(means + chunk * GROUPS + group, mean)
    tl.store(squares + chunk * GROUPS + group, tl.sum(tl.sum(value * value, axis=0), axis=1))


@triton.jit
def _arrange(
    x,
    factor,
    offset,
    scale,
    rows,
    frames,
    height,
    width,
    plane_height,
    plane_width,
    pixels,  # padded pixels in all
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Padded pixels of an operand: reflected in space, zero in the two frames ahead of each clip."""
    at = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    inside = at < pixels
    column = at % plane_width
    line = (at // plane_width) % plane_height
    plane = (at // (plane_width * plane_height)) % (STRIDE * STRIDE)
    frame = at // (plane_width * plane_height * STRIDE * STRIDE)
    if STRIDE == 1:
        y, x_at = tl.abs(line - 1), tl.abs(column - 1)
    else:
        y, x_at = line * STRIDE + plane // STRIDE, column * STRIDE + plane % STRIDE
    y = tl.minimum(y, 2 * height - 2 - y)
    x_at = tl.minimum(x_at, 2 * width - 2 - x_at)
    time = frame % (frames + 2) - 2
    real = inside & (time >= 0) & (y >= 0) & (x_at >= 0)
    source = (frame // (frames + 2)) * frames + time
    pixel = (source * height + y) * width + x_at
    channel = tl.arange(0, CHANNELS)
    value = tl.load(x + pixel[:, None] * CHANNELS + channel[None, :], mask=real[:, None], other=0.0)
    if factor is not None:
        table = source[:, None] * CHANNELS + channel[None, :]
        value *= tl.load(factor + table, mask=real[:, None], other=0.0)
        value += tl.load(offset + table, mask=real[:, None], other=0.0)
        value = value / (1.0 + tl.exp(-value))
    else:
        value *= tl.load(scale)
    tl.store(rows + at[:, None] * CHANNELS + channel[None, :], value.to(tl.float16), mask=inside[:, None])


def statistics(x: torch.Tensor, norm: nn.GroupNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 mean and 1/deviation [B * D, groups] of every frame of x [B, D, H, W, C]."""
    batch, frames, height, width, channels = x.shape
    pixels = _power_of_two_in(height * width, _ELEMENTS // channels)
    chunks = height * width // pixels
    means = x.new_empty(batch * frames, chunks, norm.num_groups)
    squares = torch.empty_like(means)
    size = channels // norm.num_groups
    sizes = {"PIXELS": pixels, "GROUPS": norm.num_groups, "SIZE": size}
    _chunk_statistics[(batch * frames * chunks,)](x, means, squares, channels, **sizes, num_warps=_WARPS)
    means = means.double()
    mean = means.mean(1)
    between = (means - mean[:, None]).square().sum(1) * (pixels * size)
    variance = (squares.double().sum(1) + between) / (height * width * size)
    return mean.float(), (variance + norm.eps).rsqrt().float()


def normalized(x: torch.Tensor, norm: nn.GroupNorm) -> Operand:
    """SiLU of the normalized x, padded for a convolution of stride 1.

    A normalized value is below the root of its group's size, 724 here: float16 has room for gains up to 90.
    """
    mean, rstd = (part.repeat_interleave(x.shape[-1] // norm.num_groups, 1) for part in statistics(x, norm))
    factor = rstd * norm.weight
    return _operand(x, stride=1, tables=(factor, norm.bias - mean * factor))


def halved(x: torch.Tensor) -> Operand:
    """x itself for a convolution of stride 2 in space, scaled by a power of two into float16's range."""
    exponent = torch.frexp(x.abs().amax()).exponent - HALF_EXPONENT
    one = torch.ones((), device=x.device)
    return _operand(x, stride=2, scales=(torch.ldexp(one, -exponent), torch.ldexp(one, exponent)))


def _operand(
    x: torch.Tensor,
    *,
    stride: int,
    tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Operand:
    batch, frames, height, width, channels = x.shape
    plane = (height + 2, width + 2) if stride == 1 else (height // 2 + 1, width // 2 + 1)
    count = batch * (frames + 2) * stride**2 * plane[0] * plane[1]
    rows = x.new_empty(count, channels, dtype=torch.float16)
    scale, back = scales or (None, None)
    pixels = max(1, _ELEMENTS // channels)
    _arrange[(triton.cdiv(count, pixels),)](
        x,
        *(tables or (None, None)),
        scale,
        rows,
        frames,
        height,
        width,
        *plane,
        count,
        STRIDE=stride,
        PIXELS=pixels,
        CHANNELS=channels,
        num_warps=_WARPS,
    )
    return Operand(rows, batch, frames + 2, *plane, stride, back)


def run_block(block: ResBlock, x: torch.Tensor) -> torch.Tensor:
    """A `ResBlock` on channels-last x [B, D, H, W, C]."""
    skip = x
    if hasattr(block, "nin_shortcut"):
        skip = F.linear(x, block.nin_shortcut.weight.float().flatten(1), block.nin_shortcut.bias)
    x = _convolved(block.conv1, normalized(x, block.norm1))
    return _convolved(block.conv2, normalized(x, block.norm2), skip)


def run_downsample(layer: Downsample, x: torch.Tensor) -> torch.Tensor:
    """A `Downsample` on channels-last x, which halves height and width."""
    return _convolved(layer.conv, halved(x))


def run_levels(levels: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """`video_encoder.run_levels`: `[B,C,D,H,W]` in and out."""
    x = x.permute(0, 2, 3, 4, 1).contiguous()
    for level in levels:
        assert isinstance(level, Level)
        for block in level.block:
            assert isinstance(block, ResBlock)
            x = run_block(block, x)
        if hasattr(level, "downsample"):
            x = run_downsample(level.downsample, x)
    return x.permute(0, 4, 1, 2, 3)


def _convolved(layer: nn.Conv3d, operand: Operand, skip: torch.Tensor | None = None) -> torch.Tensor:
    assert layer.bias is not None
    return convolve(operand, layer.weight, layer.bias, time_stride=layer.stride[0], skip=skip)


def _power_of_two_in(count: int, most: int) -> int:
    """The largest power of two that divides `count` and is at most `most`."""
    return min(count & -count, 1 << max(0, most.bit_length() - 1))
