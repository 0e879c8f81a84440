"""The video encoder as two-dimensional convolutions with channels last, for training on a GPU.

Same parameters and same numbers as h3serve's `VideoEncoder`: time is folded into the batch, and the three frames
that a causal 3x3x3 kernel sees become three groups of channels. Narrow 3-D convolutions in 16 bits have slow
kernels, or none; these have fast ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from h3serve.models.video_encoder import CausalConv3d, FrameGroupNorm, ResBlock, VideoEncoder
from h3serve.models.video_vae import VideoVAE

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
    grouped = x.unflatten(-1, (norm.num_groups, -1)).float()
    variance, mean = torch.var_mean(grouped, dim=(2, 3, 5), correction=0, keepdim=True)
    scale = torch.rsqrt(variance + norm.eps) * norm.weight.unflatten(0, (norm.num_groups, -1))
    shift = norm.bias.unflatten(0, (norm.num_groups, -1)) - mean * scale
    return F.silu(torch.addcmul(shift, grouped, scale)).to(dtype).flatten(-2)


def _conv(conv: CausalConv3d, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    batch, depth = x.shape[:2]
    time, height, width = conv.stride
    x = _reflect(_reflect(x.to(dtype), 2, *conv.pad[2:]), 3, *conv.pad[:2])
    x = torch.cat([x.new_zeros(batch, REACH - 1, *x.shape[2:]), x], dim=1)
    frames = range(0, depth, time)
    seen = [x[:, k : k + frames[-1] + 1 : time] for k in range(REACH)]
    folded = torch.cat(seen, dim=-1).flatten(0, 1).permute(0, 3, 1, 2)  # channels last in memory
    weight = conv.weight.transpose(1, 2).flatten(1, 2).to(dtype).contiguous(memory_format=torch.channels_last)
    out = F.conv2d(folded, weight, conv.bias.to(dtype), (height, width))
    return out.permute(0, 2, 3, 1).unflatten(0, (batch, -1))


def _reflect(x: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """One entry reflected on either side, or none."""
    parts = [x]
    if before:
        parts.insert(0, x.narrow(dim, 1, 1))
    if after:
        parts.append(x.narrow(dim, x.shape[dim] - 2, 1))
    return torch.cat(parts, dim) if len(parts) > 1 else x
