"""From timesteps to the shifts, scales and gates of every block (spec/transformer.md 2.3, 2.4).

Two fifths of the model's parameters live here, and their output depends on the timesteps alone:
a cache may stand in for this network, or run it layer by layer with `embed` and `project_layer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.transformer.transformer_config import MODALITIES, VECTORS, TransformerConfig

MAX_PERIOD = 10000.0


@dataclass(frozen=True)
class Modulation:
    """Tables for M distinct timesteps, in the compute dtype.

    `blocks[layer]` is [3M, 6, hidden]: row 3 * timestep index + modality (video 0, text 1, audio
    2); shift, scale, gate of the attention, then of the MLP. `final` is [M, 2, hidden]: shift, scale.
    """

    blocks: torch.Tensor
    final: torch.Tensor


def sinusoid(timesteps: torch.Tensor, width: int) -> torch.Tensor:
    """Timesteps in [0, 1], not scaled, [M] -> float32 [M, width]: cosines first, then sines."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    angles = timesteps.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * steps / half)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class TimeEmbedder(nn.Module):
    """The timestep MLP: float32 weights and arithmetic."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.proj_in = nn.Linear(config.freq_dim, config.time_embed_hidden_dim)
        self.proj_out = nn.Linear(config.time_embed_hidden_dim, config.time_embed_dim)

    def forward(self, timesteps: torch.Tensor) -> torch.Tensor:
        """float32 [M] -> float32 [M, time_embed_dim]."""
        return self.proj_out(F.silu(self.proj_in(sinusoid(timesteps, self.freq_dim))))


class AdaLNProjection(nn.Module):
    """One linear map of the shared embedding to all vectors of a block."""

    def __init__(self, config: TransformerConfig, rows: int, vectors: int) -> None:
        super().__init__()
        self.shape = (-1, vectors, config.hidden_size)
        self.linear = nn.Linear(config.time_embed_dim, rows * vectors * config.hidden_size)

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        """[M, time_embed_dim] -> [M * rows, vectors, hidden]."""
        return self.linear(embedding).view(self.shape)


class Modulator(nn.Module):
    """A block's projection, under its name in the original layout."""

    def __init__(self, config: TransformerConfig, rows: int, vectors: int) -> None:
        super().__init__()
        self.adaln_proj = AdaLNProjection(config, rows, vectors)


class ModulationNetwork(nn.Module):
    """Timestep embedder, every block's AdaLN projection and the final layer's."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.time_embedder = TimeEmbedder(config)
        self.blocks = nn.ModuleList(Modulator(config, MODALITIES, VECTORS) for _ in range(config.num_layers))
        self.final_layer = Modulator(config, 1, 2)

    def embed(self, timesteps: torch.Tensor) -> torch.Tensor:
        """float32 [M] -> [M, time_embed_dim]: SiLU in float32, then rounded to the compute dtype."""
        dtype = self.final_layer.adaln_proj.linear.weight.dtype
        return F.silu(self.time_embedder(timesteps)).to(dtype)

    def project_layer(self, layer: int, embedding: torch.Tensor) -> torch.Tensor:
        """Embedding [M, time_embed_dim] -> the block's table [3M, 6, hidden]."""
        modulator = self.blocks[layer]
        assert isinstance(modulator, Modulator)
        return modulator.adaln_proj(embedding)

    def project_final(self, embedding: torch.Tensor) -> torch.Tensor:
        """Embedding [M, time_embed_dim] -> the final layer's table [M, 2, hidden]."""
        return self.final_layer.adaln_proj(embedding)

    def forward(self, timesteps: torch.Tensor) -> Modulation:
        """Tables for distinct timesteps, float32 [M]; M sets the GEMM's size, thus the bits."""
        embedding = self.embed(timesteps)
        layers = [self.project_layer(i, embedding) for i in range(len(self.blocks))]
        return Modulation(torch.stack(layers), self.project_final(embedding))
