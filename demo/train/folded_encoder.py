"""The video encoder as two-dimensional convolutions with channels last, for training on a GPU.

Same parameters and same numbers as h3serve's `VideoEncoder`: time is folded into the batch, and the three frames
that a causal 3x3x3 kernel sees become three groups of channels. Narrow 3-D convolutions in 16 bits have slow
kernels, or none; these have fast ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from h3serve.models.video_vae.video_encoder import CausalConv3d, FrameGroupNorm, ResBlock, VideoEncoder
from h3serve.models.video_vae.video_vae import VideoVAE

REACH = 3  # frames a kernel sees: this one and the two before it


def moments(vae: VideoVAE, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`quant_conv(encoder(pixels))` of float32 `[B,3,D,H,W]`, convolutions in `dtype`; float32 `[B,48,d,h,w]`."""
    x = pixels.permute(0, 2, 3, 4, 1).contiguous()
    features = _encoder(vae.encoder, x, dtype)
    return vae.quant_conv(features.permute(0, 4, 1, 2, 3).float())


def _encoder(encoder: VideoEncoder, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`[B,D,H,W,C]` throughout."""
    x = _conv(encoder.conv_in, x, dtype)
    for level in encoder.down:
        for block in level.block:
            x = _block(block, x, dtype)
        if hasattr(level, "downsample"):
            x = _conv(level.downsample.conv, x, dtype)
    return _conv(encoder.conv_out, _norm_silu(encoder.norm_out, x, dtype), dtype)


def _block(block: ResBlock, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    skip = x
    if hasattr(block, "nin_shortcut"):
        skip = F.linear(x.to(dtype), block.nin_shortcut.weight.flatten(1).to(dtype), block.nin_shortcut.bias.to(dtype))
    x = _conv(block.conv1, _norm_silu(block.norm1, x, dtype), dtype)
    return skip + _conv(block.conv2, _norm_silu(block.norm2, x, dtype), dtype)


def _norm_silu(norm: FrameGroupNorm, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return NormSilu.apply(x.to(dtype), norm.weight, norm.bias, norm.num_groups, norm.eps)


class NormSilu(torch.autograd.Function):
    """SiLU of the group norm of each frame of `[B,D,H,W,C]`, sums in float32.

    By hand, because both ways are sums and one multiplication and addition a channel.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
    ) -> torch.Tensor:
        grouped = x.unflatten(-1, (groups, -1))
        variance, mean = torch.var_mean(grouped.float(), dim=(2, 3, 5), correction=0, keepdim=True)
        each = x.shape[-1] // groups
        mean, inverse = (
            part.expand(*part.shape[:-1], each).flatten(-2) for part in (mean, torch.rsqrt(variance + eps))
        )
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.groups = groups
        scale = inverse * weight
        return F.silu(torch.addcmul(bias - mean * scale, x, scale)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors  # mean and inverse deviation [B,D,1,1,C]
        scale = inverse * weight
        z = torch.addcmul(bias - mean * scale, x, scale)
        dz = torch.ops.aten.silu_backward(gradient.float(), z)
        total = dz.sum(dim=(2, 3), keepdim=True)
        along = (((dz * x).sum(dim=(2, 3), keepdim=True)) - mean * total) * inverse  # with the normalized values
        count = x.shape[2] * x.shape[3]
        a, b = (_group_mean(part * weight, ctx.groups) / count for part in (total, along))
        slope = -inverse.square() * b
        dx = torch.addcmul(torch.addcmul(-inverse * a - mean * slope, x, slope), dz, scale)
        return dx.to(x.dtype), along.sum(dim=(0, 1, 2, 3)), total.sum(dim=(0, 1, 2, 3)), None, None


def _group_mean(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Every channel's value replaced by the mean of its group."""
    grouped = x.unflatten(-1, (groups, -1))
    return grouped.mean(-1, keepdim=True).expand_as(grouped).flatten(-2)


def _conv(conv: CausalConv3d, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    time, height, width = conv.stride
    folded = Fold.apply(x.to(dtype), time, conv.pad)
    weight = conv.weight.transpose(1, 2).flatten(1, 2).to(dtype).contiguous(memory_format=torch.channels_last)
    out = F.conv2d(folded.flatten(0, 1).permute(0, 3, 1, 2), weight, conv.bias.to(dtype), (height, width))
    return out.permute(0, 2, 3, 1).unflatten(0, (len(x), -1))


class Fold(torch.autograd.Function):
    """`[B,D,H,W,C]` to `[B,d,H+..,W+..,3C]`: what a causal kernel sees of every `time`-th frame, as channels.

    Zeros stand in front of the first frame; in space `pad` = (left, right, top, bottom) pixels are reflected, 0 or
    1 each. By hand, because differentiating slices and joins moves several times as many bytes.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, time: int, pad: tuple[int, int, int, int]) -> torch.Tensor:
        batch, depth, height, width, channels = ctx.shape = x.shape
        left, right, top, bottom = ctx.pad = pad
        ctx.time = time
        size = (height + top + bottom, width + left + right)
        folded = x.new_zeros(batch, -(-depth // time), *size, REACH * channels)
        inner = folded[:, :, top : top + height, left : left + width]
        for tap, first, frames in _taps(depth, time):
            inner[:, first:, ..., tap * channels : (tap + 1) * channels] = x[:, frames]
        for dim, edge, mirror in _edges(folded.shape, pad):
            folded.select(dim, edge).copy_(folded.select(dim, mirror))
        return folded

    @staticmethod
    def backward(ctx: Any, folded: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        _, depth, height, width, channels = ctx.shape
        left, _, top, _ = ctx.pad
        folded = folded.clone(memory_format=torch.contiguous_format)
        for dim, edge, mirror in reversed(_edges(folded.shape, ctx.pad)):
            folded.select(dim, mirror).add_(folded.select(dim, edge))
        inner = folded[:, :, top : top + height, left : left + width]
        x = folded.new_zeros(ctx.shape)
        for tap, first, frames in _taps(depth, ctx.time):
            x[:, frames] += inner[:, first:, ..., tap * channels : (tap + 1) * channels]
        return x, None, None


def _taps(depth: int, time: int) -> list[tuple[int, int, slice]]:
    """Of each tap of a kernel: its number, the first output that sees a real frame there, and the frames seen."""
    taps = []
    for tap in range(REACH):
        behind = REACH - 1 - tap  # output i sees frame time * i - behind
        first = -(-behind // time)
        taps.append((tap, first, slice(time * first - behind, depth - behind, time)))
    return taps


def _edges(shape: Sequence[int], pad: tuple[int, int, int, int]) -> list[tuple[int, int, int]]:
    """Dimension, index of an edge and of what is reflected there; rows first, whole columns after them."""
    left, right, top, bottom = pad
    edges = []
    for dim, before, after in ((2, top, bottom), (3, left, right)):
        edges += [(dim, 0, 2)] * before + [(dim, shape[dim] - 1, shape[dim] - 3)] * after
    return edges
