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

from h3serve.models.video_vae.conv3d_triton import Operand, convolve
from h3serve.models.video_vae.video_encoder import HALF_EXPONENT, Downsample, Level, ResBlock, VideoEncoder

_ELEMENTS = 8192  # at a time, per program
_STEPS = 16  # times, per program that sums
_WARPS = 8
_FIRST_CHANNELS = 16  # three of three each, padded to what the matrix units take


@triton.jit
def _chunk_statistics(
    x, means, squares, frame_pixels, channels, STEPS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Mean, and sum of squared distances from it, of each channel in a chunk of `STEPS * PIXELS` pixels of a frame."""
    chunk = tl.program_id(0)
    chunks = frame_pixels // (STEPS * PIXELS)
    column = tl.arange(0, CHANNELS)
    inside = column < channels
    # Sums of distances from a pixel of the frame: near enough to the mean that float32 loses nothing.
    pivot = tl.load(x + (chunk // chunks).to(tl.int64) * frame_pixels * channels + column, mask=inside, other=0.0)
    at = x + (chunk.to(tl.int64) * STEPS * PIXELS + tl.arange(0, PIXELS)[:, None]) * channels + column[None, :]
    first = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    second = tl.zeros((PIXELS, CHANNELS), dtype=tl.float32)
    for _ in range(STEPS):
        value = tl.load(at, mask=inside[None, :], other=0.0) - pivot[None, :]
        first += value
        second += value * value
        at += PIXELS * channels
    total = tl.sum(first, axis=0)
    count = STEPS * PIXELS
    tl.store(means + chunk * channels + column, pivot + total / count, mask=inside)
    tl.store(squares + chunk * channels + column, tl.sum(second, axis=0) - total * total / count, mask=inside)


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
    plane_width,
    channels,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Pixels of one padded line of an operand: reflected in space, zero in the two frames ahead of each chunk."""
    column = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    line = tl.program_id(1)
    planes: tl.constexpr = STRIDE * STRIDE
    plane = tl.program_id(2) % planes
    frame = tl.program_id(2) // planes
    if STRIDE == 1:
        y, across = tl.abs(line - 1), tl.abs(column - 1)
    else:
        y, across = line * STRIDE + plane // STRIDE, column * STRIDE + plane % STRIDE
    y = tl.minimum(y, 2 * height - 2 - y)
    across = tl.minimum(across, 2 * width - 2 - across)
    time = frame % (frames + 2) - 2
    source = (frame // (frames + 2)) * frames + time
    channel = tl.arange(0, CHANNELS)
    inside = channel < channels
    real = (time >= 0) & (y >= 0) & (across >= 0)
    here = real[:, None] & inside[None, :]
    pixel = (source.to(tl.int64) * height + y) * width + across
    value = tl.load(x + pixel[:, None] * channels + channel[None, :], mask=here, other=0.0)
    if factor is not None:
        table = source * channels + channel
        known = inside & (time >= 0)
        value *= tl.load(factor + table, mask=known, other=0.0)[None, :]
        value += tl.load(offset + table, mask=known, other=0.0)[None, :]
        value = value / (1.0 + tl.exp(-value))
        value = tl.where(real[:, None], value, 0.0)
    elif scale is not None:
        value *= tl.load(scale)
    to = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + line) * plane_width + column
    there = (column < plane_width)[:, None] & inside[None, :]
    tl.store(rows + to[:, None] * channels + channel[None, :], value.to(tl.float16), mask=there)


def statistics(x: torch.Tensor, norm: nn.GroupNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 mean and 1/deviation [B * D, groups] of every frame of x [B, D, H, W, C]."""
    batch, frames, height, width, channels = x.shape
    block = triton.next_power_of_2(channels)
    pixels = _power_of_two_in(height * width, max(1, _ELEMENTS // 2 // block))
    steps = _power_of_two_in(height * width // pixels, _STEPS)
    chunks = height * width // (pixels * steps)
    means = x.new_empty(batch * frames, chunks, channels)
    squares = torch.empty_like(means)
    sizes = (height * width, channels)
    grid = (batch * frames * chunks,)
    _chunk_statistics[grid](x, means, squares, *sizes, STEPS=steps, PIXELS=pixels, CHANNELS=block, num_warps=_WARPS)
    # Parts of equal size: the mean of all is that of their means, and distances add up as variances do.
    grouped = [part.unflatten(2, (norm.num_groups, -1)) for part in (means, squares)]
    variance, mean = torch.var_mean(grouped[0], dim=(1, 3), correction=0)
    variance += grouped[1].sum(dim=(1, 3)) / (height * width * channels // norm.num_groups)
    return mean, (variance + norm.eps).rsqrt()


def normalized(x: torch.Tensor, norm: nn.GroupNorm) -> Operand:
    """SiLU of the normalized x, padded for a convolution of stride 1.

    A normalized value is below the root of its group's size, 724 here: float16 has room for gains up to 90.
    """
    mean, rstd = (part.repeat_interleave(x.shape[-1] // norm.num_groups, 1) for part in statistics(x, norm))
    factor = rstd * norm.weight
    return _operand(x, stride=1, tables=(factor, norm.bias - mean * factor))


def halved(x: torch.Tensor) -> Operand:
    """x itself for a convolution of stride 2 in space, scaled by a power of two into float16's range."""
    largest = torch.stack(torch.aminmax(x)).abs().amax()
    exponent = torch.frexp(largest).exponent - HALF_EXPONENT
    one = torch.ones((), device=x.device)
    return _operand(x, stride=2, scales=(torch.ldexp(one, -exponent), torch.ldexp(one, exponent)))


def split_pixels(pixels: torch.Tensor) -> Operand:
    """Pixels `[B,3,D,H,W]`, near 1, for `split_weight`: high and low halves of a float32, to 22 bits."""
    high = pixels.half().float()
    parts = torch.cat([high, pixels - high, high], dim=1)
    parts = F.pad(parts.permute(0, 2, 3, 4, 1), (0, _FIRST_CHANNELS - parts.shape[1]))
    return _operand(parts.contiguous(), stride=1)


def split_weight(weight: torch.Tensor) -> torch.Tensor:
    """The first convolution's weight likewise: high halves against both of the pixels', low ones against the high."""
    high = weight.half().float()
    parts = torch.cat([high, high, weight - high], dim=1)
    return F.pad(parts, (0, 0, 0, 0, 0, 0, 0, _FIRST_CHANNELS - parts.shape[1]))


def _operand(
    x: torch.Tensor,
    *,
    stride: int,
    tables: tuple[torch.Tensor, torch.Tensor] | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Operand:
    batch, frames, height, width, channels = x.shape
    plane = (height + 2, width + 2) if stride == 1 else (height // 2 + 1, width // 2 + 1)
    count = batch * (frames + 2) * stride**2
    rows = x.new_empty(count * plane[0] * plane[1], channels, dtype=torch.float16)
    scale, back = scales or (None, None)
    block = triton.next_power_of_2(channels)
    pixels = max(1, min(_ELEMENTS // block, triton.next_power_of_2(plane[1])))
    _arrange[(triton.cdiv(plane[1], pixels), plane[0], count)](
        x,
        *(tables or (None, None)),
        scale,
        rows,
        frames,
        height,
        width,
        plane[1],
        channels,
        STRIDE=stride,
        PIXELS=pixels,
        CHANNELS=block,
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


def trunk(encoder: VideoEncoder, pixels: torch.Tensor) -> torch.Tensor:
    """`video_encoder.trunk`: pixels `[B,3,D,H,W]` to `[B,C,D',H',W']`."""
    first = encoder.conv_in
    assert first.bias is not None
    x = convolve(split_pixels(pixels), split_weight(first.weight), first.bias)
    for level in encoder.down:
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
