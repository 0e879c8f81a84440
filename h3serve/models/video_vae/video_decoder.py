"""Video VAE decoder: a non-causal ViT from a window of latents to pixels (spec/vae_video.md 5.4,
5.5).

The matrices of the blocks may be float16 (`param_dtype` of video_vae_config.py); the residual stream, the norms,
the embedding and the output projection stay float32.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import nn

from h3serve.models.kernels.elementwise import Rope
from h3serve.models.video_vae.decoder_ops import PLAIN, DecoderOps
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig


@lru_cache(maxsize=32)
@torch.inference_mode(mode=False)  # who asks first may be inferring, who asks next may be training
def rope_table(
    size: tuple[int, int, int], suffix: int, *, config: VideoVAEConfig, dtype: torch.dtype, device: torch.device
) -> Rope:
    """cos and sin `[N, rotated/2]` of the tokens of a tile of `size` (t, h, w), and of `suffix`
    tokens at the origin.

    Coordinates run over (-1, 1) along each axis of this very tile. They and their multiple of 2 pi
    are rounded to `dtype`; the frequencies and the angles are float32 (spec 5.5).
    """
    per_axis = config.rotated_dim // 6
    exponents = torch.arange(per_axis, dtype=torch.float32, device="cpu") / per_axis
    frequencies = (1.0 / config.rope_theta**exponents).to(device)
    axes = [2.0 * (torch.arange(n, dtype=dtype, device=device).add(0.5) / n) - 1.0 for n in size]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)
    grid = torch.cat([grid, grid.new_zeros(suffix, 3)])
    angles = ((2.0 * math.pi * grid)[:, :, None] * frequencies).flatten(1)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))


class Attention(nn.Module):
    """Full self-attention; queries and keys normalized in float32, without gain, then rotated."""

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.heads, self.eps = config.heads, config.decoder_eps
        self.to_qkv = nn.Linear(config.width, 3 * config.width)  # rows [q; k; v]
        self.to_out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, rope: Rope, ops: DecoderOps = PLAIN) -> torch.Tensor:
        """`[B,N,width]` in the dtype of the weights, in and out."""
        qkv = self.to_qkv(x).unflatten(-1, (3, self.heads, -1))
        return self.to_out(ops.attention(*ops.qk_norm_rope(qkv, self.eps, rope)).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(gate) * up), `w1` rows [gate; up]."""

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        inner = config.ffn_mult * config.width
        self.w1 = nn.Linear(config.width, 2 * inner)
        self.w2 = nn.Linear(inner, config.width)

    def forward(self, x: torch.Tensor, ops: DecoderOps = PLAIN) -> torch.Tensor:
        return self.w2(ops.gated_linear(x, self.w1))


class Block(nn.Module):
    """Attention and feed-forward, each added to the float32 residual through a learned scale per
    channel.
    """

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.width, config.decoder_eps)
        self.attn = Attention(config)
        self.scale1 = nn.Parameter(torch.zeros(config.width))
        self.norm2 = nn.RMSNorm(config.width, config.decoder_eps)
        self.ff = FeedForward(config)
        self.scale2 = nn.Parameter(torch.zeros(config.width))

    def forward(self, x: torch.Tensor, rope: Rope, ops: DecoderOps = PLAIN) -> torch.Tensor:
        """Residual stream float32 `[B,N,width]`, in and out; `ops` may overwrite it."""
        h = ops.norm(x, self.norm1, self.attn.to_qkv.weight.dtype)
        x, h = ops.scaled_add_norm(x, self.attn(h, rope, ops), self.scale1, self.norm2)
        return ops.scaled_add(x, self.ff(h, ops), self.scale2)


class VideoDecoder(nn.Module):
    """Latents `[B,24,T,h,w]` of one tile and window to pixels float32 `[B,3,4T,16h,16w]`.

    `ops` may be exchanged for a fused set (`quality.use_vae_quality`).
    """

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.config, self.ops = config, PLAIN
        patch = config.time_ratio * config.space_ratio**2
        self.x_embedder = nn.Linear(config.latent_channels, config.width)
        self.register_tokens = nn.Parameter(torch.zeros(1, config.registers, config.width))
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.decoder_layers))
        self.norm_out = nn.LayerNorm(config.width, config.decoder_eps)
        self.proj_out = nn.Linear(config.width, config.out_channels * patch)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        size = (latents.shape[2], latents.shape[3], latents.shape[4])
        tokens = self._tokens(latents)
        suffix = self.config.registers + 1
        rope = rope_table(size, suffix, config=self.config, dtype=latents.dtype, device=latents.device)
        for block in self.transformer_blocks:
            tokens = block(tokens, rope, self.ops)
        patches = self.ops.project(self.norm_out(tokens[:, : math.prod(size)]), self.proj_out)
        return self._pixels(patches, size)

    def _tokens(self, latents: torch.Tensor) -> torch.Tensor:
        """One token per latent (t, then y, then x), the registers, and the zero token the model was
        trained with.
        """
        tokens = self.x_embedder(latents.flatten(2).transpose(1, 2).float())
        tokens = tokens.to(latents.dtype).float()  # the release rounds here
        registers = self.register_tokens.expand(len(tokens), -1, -1)
        return torch.cat([tokens, registers, torch.zeros_like(tokens[:, :1])], dim=1)

    def _pixels(self, patches: torch.Tensor, size: tuple[int, int, int]) -> torch.Tensor:
        side, time = self.config.space_ratio, self.config.time_ratio
        patches = patches.unflatten(-1, (self.config.out_channels, time, side, side))
        patches = patches.unflatten(1, size).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return patches.flatten(6, 7).flatten(4, 5).flatten(2, 3)
