"""Audio VAE, audio to latents: a strided convolution trunk and its projection (spec/vae_audio.md 6.2, 6.3).

Attribute names are those of the checkpoint.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from h3serve.models.audio_vae.weight_norm import Conv1d

DILATIONS = (1, 3, 9)


class Snake(nn.Module):
    """x + sin²(αx)/α per channel; α is stored as it is, not as a logarithm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class ResidualUnit(nn.Module):
    """[B, C, L] -> the same shape."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation),
            Snake(channels),
            Conv1d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x)


class DownBlock(nn.Module):
    """[B, C, L] -> [B, 2C, L/stride]."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, dilation) for dilation in DILATIONS),
            Snake(channels),
            Conv1d(channels, 2 * channels, 2 * stride, stride=stride, padding=-(-stride // 2)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


class AudioEncoder(nn.Module):
    """[B, 1, n] float32 audio, n a multiple of the product of `rates` -> [B, width, T] trunk."""

    def __init__(self, channels: int, rates: tuple[int, ...], width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [Conv1d(1, channels, 7, padding=3)]
        for rate in rates:
            blocks.append(DownBlock(channels, rate))
            channels *= 2
        blocks += [Snake(channels), Conv1d(channels, width, 3, padding=1)]
        self.block = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


class HeadPooledAttention(nn.Module):
    """Causal attention from `width` to `channels`: the heads are averaged, then their dims in groups."""

    zero_k_bias: torch.Tensor

    def __init__(self, width: int, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("zero_k_bias", torch.zeros(width))  # a tensor of the file
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = torch.cat((self.q_bias, self.zero_k_bias, self.v_bias))
        qkv = F.linear(x, self.qkv.weight, bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [B, heads, T, dim]
        pooled = F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(dim=1)
        return self.proj(pooled.unflatten(-1, (self.channels, -1)).mean(dim=-1))


class GatedMLP(nn.Module):
    """GELU(w0 x)·(w1 x) through w2, on its own normalized input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.w0 = nn.Linear(channels, 2 * channels)
        self.w1 = nn.Linear(channels, 2 * channels)
        self.w2 = nn.Linear(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.w2(F.gelu(self.w0(x), approximate="tanh") * self.w1(x))


class LatentProjection(nn.Module):
    """[B, T, width] trunk -> [B, T, channels]. The MLP's input is normalized twice, as released."""

    def __init__(self, width: int, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = HeadPooledAttention(width, channels, heads)
        self.norm3 = nn.LayerNorm(width)
        self.proj = nn.Linear(width, channels)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = GatedMLP(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(self.norm3(x)) + self.attn(self.norm1(x))
        return y + self.mlp(self.norm2(y))
