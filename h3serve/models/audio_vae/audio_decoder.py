"""Audio VAE, latents to audio: transposed convolutions with alias-free activations (spec/vae_audio.md 6.4).

Attribute names are those of the checkpoint.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from h3serve.models.audio_vae.weight_norm import Conv1d, ConvTranspose1d

TAPS = 12
CUTOFF, HALF_WIDTH = 0.25, 0.3  # of the sample rate, for a factor of two


@cache  # every activation asks for it, and under the meta device its operations are slow
def half_band_filter() -> torch.Tensor:
    """[1, 1, 12] low-pass on the CPU: a sinc under a Kaiser window, its sum 1."""
    with torch.device("cpu"):
        return _half_band_filter()


def _half_band_filter() -> torch.Tensor:
    attenuation = 2.285 * (TAPS // 2 - 1) * math.pi * 4 * HALF_WIDTH + 7.95  # 51 dB
    window = torch.kaiser_window(TAPS, periodic=False, beta=0.1102 * (attenuation - 8.7))
    time = torch.arange(-TAPS // 2, TAPS // 2) + 0.5
    taps = 2 * CUTOFF * window * torch.sinc(2 * CUTOFF * time)
    return (taps / taps.sum()).reshape(1, 1, TAPS)


class _Filtered(nn.Module):
    """Holds the filter: a tensor of the file."""

    filter: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", half_band_filter().to(torch.get_default_device(), copy=True))

    def per_channel(self, channels: int) -> torch.Tensor:
        return self.filter.expand(channels, -1, -1)


class Upsample(_Filtered):
    """[B, C, L] -> [B, C, 2L]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels = x.shape[1]
        x = F.pad(x, (5, 5), mode="replicate")
        x = F.conv_transpose1d(x, self.per_channel(channels), stride=2, groups=channels)
        return 2 * x[..., 15:-15]


class LowPass(_Filtered):
    """[B, C, 2L] -> [B, C, L]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels = x.shape[1]
        x = F.pad(x, (5, 6), mode="replicate")
        return F.conv1d(x, self.per_channel(channels), stride=2, groups=channels)


class Downsample(nn.Module):
    """`LowPass` under the name that the checkpoint gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.lowpass = LowPass()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lowpass(x)


class SnakeBeta(nn.Module):
    """x + sin²(e^α x)/e^β per channel; both are stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + (beta + 1e-9).reciprocal() * torch.sin(alpha * x).square()


class AliasFree(nn.Module):
    """A SnakeBeta at twice the sample rate, so that its overtones do not fold back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = SnakeBeta(channels)
        self.upsample, self.downsample = Upsample(), Downsample()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.downsample(self.act(self.upsample(x)))


class AMPBlock(nn.Module):
    """Anti-aliased multi-periodicity block: [B, C, L] -> the same shape."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        reach = kernel - 1
        self.convs1 = nn.ModuleList(
            Conv1d(channels, channels, kernel, dilation=d, padding=reach * d // 2) for d in dilations
        )
        self.convs2 = nn.ModuleList(Conv1d(channels, channels, kernel, padding=reach // 2) for _ in dilations)
        self.activations = nn.ModuleList(AliasFree(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.activations[::2], self.activations[1::2]
        for conv1, conv2, act1, act2 in zip(self.convs1, self.convs2, first, second, strict=True):
            x = x + conv2(act2(conv1(act1(x))))
        return x


class AudioDecoder(nn.Module):
    """[B, width, T] -> [B, 1, T·product of rates] float32 in [-1, 1]; channels halve per stage."""

    def __init__(
        self,
        width: int,
        channels: int,
        *,
        rates: tuple[int, ...],
        kernels: tuple[int, ...],
        amp_kernels: tuple[int, ...],
        amp_dilations: tuple[tuple[int, ...], ...],
    ) -> None:
        super().__init__()
        amp = list(zip(amp_kernels, amp_dilations, strict=True))
        self.conv_pre = Conv1d(width, channels, 7, padding=3)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for kernel, rate in zip(kernels, rates, strict=True):
            up = ConvTranspose1d(channels, channels // 2, kernel, rate)
            self.ups.append(nn.Sequential(up))  # the file has this level: ups.i.0
            channels //= 2
            self.resblocks.extend(AMPBlock(channels, k, dilations) for k, dilations in amp)
        self.activation_post = AliasFree(channels)
        self.conv_post = Conv1d(channels, 1, 7, padding=3, bias=False)
        self.num_amp = len(amp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(x)
        for stage, up in enumerate(self.ups):
            x = up(x)
            blocks = self.resblocks[stage * self.num_amp : (stage + 1) * self.num_amp]
            x = sum(block(x) for block in blocks) / self.num_amp
        return self.conv_post(self.activation_post(x)).clamp(-1, 1)
