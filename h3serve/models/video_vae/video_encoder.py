"""Video VAE encoder: a causal 3-D CNN from normalized pixels to the moments of the posterior
(spec/vae_video.md 5.3).

No attention, no state between calls: a chunk of 17 frames, or a single image, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from h3serve.models.video_vae.video_vae_config import VideoVAEConfig

HALF_EXPONENT = 4  # float16 operands lie within 2**4, in the middle of the range
FUSED_CHANNELS = 64  # the kernels of `fused_encoder.py` take multiples of it


class Conv3d(nn.Conv3d):
    """Convolution of float32 to float32; the operands have the dtype of the weight.

    In float16 `x` is first scaled by a power of two, so that no value is out of range: 10 bits of mantissa
    are left of it, as many as in TF32.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype == torch.float32:
            return super().forward(x)
        exponent = torch.frexp(x.abs().amax()).exponent - HALF_EXPONENT
        operand = torch.ldexp(x, -exponent).to(self.weight.dtype)
        result = F.conv3d(operand, self.weight, None, self.stride).float()
        return result.ldexp_(exponent).add_(self.get_parameter("bias").view(-1, 1, 1, 1))


class CausalConv3d(Conv3d):
    """3x3x3 convolution that sees this frame and the two before it.

    In front of the first frame are zeros (not copies of it). In space `pad` = (left, right, top,
    bottom) pixels are reflected.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        pad: tuple[int, int, int, int] = (1, 1, 1, 1),
        stride: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        super().__init__(in_channels, out_channels, 3, stride)
        self.pad = pad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[B,C,D,H,W]` to `[B,C',ceil(D/st),...]`."""
        return super().forward(F.pad(F.pad(x, (*self.pad, 0, 0), mode="reflect"), (0, 0, 0, 0, 2, 0)))


class FrameGroupNorm(nn.GroupNorm):
    """Group normalization with the statistics of each frame alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        x = super().forward(x.transpose(1, 2).flatten(0, 1))
        return x.unflatten(0, (batch, -1)).transpose(1, 2)


class ResBlock(nn.Module):
    """Two normalized convolutions beside a skip; a 1x1x1 convolution of the raw input where widths
    differ.
    """

    def __init__(self, in_channels: int, out_channels: int, config: VideoVAEConfig) -> None:
        super().__init__()
        self.norm1 = FrameGroupNorm(config.norm_groups, in_channels, config.norm_eps)
        self.conv1 = CausalConv3d(in_channels, out_channels)
        self.norm2 = FrameGroupNorm(config.norm_groups, out_channels, config.norm_eps)
        self.conv2 = CausalConv3d(out_channels, out_channels)
        if in_channels != out_channels:
            self.nin_shortcut = Conv3d(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[B,C,D,H,W]` to `[B,C',D,H,W]`."""
        skip = self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x
        x = self.conv1(F.silu(self.norm1(x)))
        return skip + self.conv2(F.silu(self.norm2(x)))


class Downsample(nn.Module):
    """Strided convolution; one pixel is reflected on the right and at the bottom only."""

    def __init__(self, channels: int, time: int, space: int) -> None:
        super().__init__()
        edge = space - 1
        self.conv = CausalConv3d(channels, channels, pad=(0, edge, 0, edge), stride=(time, space, space))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class Level(nn.Module):
    """Residual blocks at one resolution, and the step down where there is one."""

    def __init__(self, index: int, config: VideoVAEConfig) -> None:
        super().__init__()
        out_channels = config.channels[index]
        widths = [config.channels[max(index - 1, 0)], *[out_channels] * config.blocks_per_level]
        time, space = config.time_down[index], config.space_down[index]
        self.block = nn.ModuleList(ResBlock(before, after, config) for before, after in pairwise(widths))
        if time * space > 1:
            self.downsample = Downsample(out_channels, time, space)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.block:
            x = block(x)
        return self.downsample(x) if hasattr(self, "downsample") else x


def trunk(encoder: VideoEncoder, pixels: torch.Tensor) -> torch.Tensor:
    """The first convolution and all levels one after another."""
    x = encoder.conv_in(pixels)
    for level in encoder.down:
        x = level(x)
    return x


class VideoEncoder(nn.Module):
    """Pixels `[B,3,D,H,W]`, D 17 or 1, to features `[B,48,ceil(D/4),H/16,W/16]`; float32.

    `trunk` may be exchanged for one with other kernels (`quality.use_vae_quality`).
    """

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.trunk: Callable[[VideoEncoder, torch.Tensor], torch.Tensor] = trunk
        self.conv_in = CausalConv3d(config.in_channels, config.channels[0])
        self.down = nn.ModuleList(Level(i, config) for i in range(len(config.channels)))
        self.norm_out = FrameGroupNorm(config.norm_groups, config.channels[-1], config.norm_eps)
        self.conv_out = CausalConv3d(config.channels[-1], 2 * config.latent_channels)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.trunk(self, pixels)
        return self.conv_out(F.silu(self.norm_out(x)))
