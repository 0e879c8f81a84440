"""Positions to rotary tables over three axes: time, height, width (spec/transformer.md 2.5)."""

from __future__ import annotations

import torch

from h3serve.models.kernels.rope import Rope
from h3serve.models.transformer.transformer_config import TransformerConfig


def inverse_frequencies(config: TransformerConfig) -> torch.Tensor:
    """float32 [frequencies], one set for all axes; made on the CPU, since pow differs on a GPU."""
    count = config.rope_freq_dim
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32, device="cpu") / (2 * count)
    return 1.0 / config.rope_theta**exponents


def rope_tables(positions: torch.Tensor, config: TransformerConfig, dtype: torch.dtype) -> Rope:
    """Tables for positions [S, 3] (t, h, w), rounded to float32 first; the angles stay float32."""
    frequencies = inverse_frequencies(config).to(positions.device)
    angles = (positions.float()[:, :, None] * frequencies).flatten(1)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))
