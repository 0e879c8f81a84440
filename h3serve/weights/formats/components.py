"""The four networks of a checkpoint: how each is configured, built, named and held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from h3serve.core.geometry import (
    AUDIO_LATENT_CHANNELS,
    LATENT_CHANNELS,
    PIXELS_PER_LATENT,
    PIXELS_PER_ROW,
    SAMPLE_RATE,
    SAMPLES_PER_AUDIO_LATENT,
)
from h3serve.models.audio_vae import audio_vae
from h3serve.models.audio_vae.audio_vae import AudioVAE, AudioVAEConfig
from h3serve.models.key_map import KeyMap, Layout
from h3serve.models.text_encoder import text_encoder
from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.models.transformer import denoiser
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae import video_vae, video_vae_config
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig


def video_vae_dtype(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """Float32; beside a coarser transformer, float16 where the release decodes so (spec/vae_video.md 5.5)."""
    return video_vae_config.param_dtype(name, torch.float32 if compute_dtype == torch.float32 else torch.float16)


def always_float32(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """The audio VAE: anything coarser is heard (spec/vae_audio.md 6.7)."""
    del name, compute_dtype
    return torch.float32


def always_compute_dtype(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """The text encoder has no precision islands."""
    del name
    return compute_dtype


@dataclass(frozen=True)
class Recipe:
    """What `weights/` needs to know of one network."""

    read_config: Callable[[dict[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    key_map: Callable[[Any, Layout], KeyMap]
    dtype_of: Callable[[str, torch.dtype], torch.dtype]  # (our tensor name, compute dtype)
    float8_linears: tuple[str, ...] = ()  # layers that 8 bits are meant for, as fnmatch patterns
    # Sizes that the plan's arithmetic takes for granted, as attributes of the config.
    fixed: Mapping[str, Any] = field(default_factory=dict)


RECIPES: dict[str, Recipe] = {
    "transformer": Recipe(
        TransformerConfig.from_dict,
        Denoiser,
        denoiser.key_map,
        denoiser.param_dtype,
        denoiser.FLOAT8_LINEARS,
        fixed={
            "in_channels": LATENT_CHANNELS,
            "audio_in_channels": AUDIO_LATENT_CHANNELS,
            "patch_size": (1, *[PIXELS_PER_ROW // PIXELS_PER_LATENT] * 2),
        },
    ),
    "text_encoder": Recipe(
        TextEncoderConfig.from_dict,
        TextEncoder,
        text_encoder.key_map,
        always_compute_dtype,
        text_encoder.FLOAT8_LINEARS,
    ),
    "video_vae": Recipe(
        VideoVAEConfig.from_dict,
        VideoVAE,
        video_vae.key_map,
        video_vae_dtype,
        fixed={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": LATENT_CHANNELS,
            "space_ratio": PIXELS_PER_LATENT,
            "time_ratio": 4,
            "clip_length": 17,  # and with it 17n+5 frames, 5n+2 latents (core/geometry.py)
            "token_drop": 3,
        },
    ),
    "audio_vae": Recipe(
        AudioVAEConfig.from_dict,
        AudioVAE,
        audio_vae.key_map,
        always_float32,
        fixed={
            "latent_channels": AUDIO_LATENT_CHANNELS,
            "hop": SAMPLES_PER_AUDIO_LATENT,
            "sampling_rate": SAMPLE_RATE,
        },
    ),
}


def build_on_meta(recipe: Recipe, config: Any) -> nn.Module:
    """The network without memory, in evaluation mode and without gradients."""
    with torch.device("meta"):
        return recipe.build(config).eval().requires_grad_(False)
