"""Sizes of the demo's two VAEs: the original layout's configuration, small."""

from __future__ import annotations

from typing import Any

from h3serve.models.audio_vae.audio_vae import AudioVAEConfig
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.weights.demo import demo_sizes
from h3serve.weights.demo.demo_sizes import Statistics


def plain_statistics(channels: int) -> Statistics:
    """Of a VAE whose latents have not been measured yet."""
    return {"latents_mean": [0.0] * channels, "latents_std": [1.0] * channels}


def video_vae(statistics: Statistics | None = None) -> dict[str, Any]:
    """`video_vae/config.json`, with `source/config.json` under "source"."""
    config = demo_sizes.video_vae("original", statistics or plain_statistics(24))
    config["source"] |= {"ch": 8, "ch_mult": [2, 3, 4, 6, 6, 8], "norm_num_groups": 8}
    config["source"]["vit_decoder_kwargs"] |= {"num_layers": 5, "heads": 3}
    return config


def audio_vae(statistics: Statistics | None = None) -> dict[str, Any]:
    """`audio_vae/config.json`, with `metadata.json` under "metadata"."""
    config = demo_sizes.audio_vae("original", statistics or plain_statistics(32))
    config["metadata"]["kwargs"] |= {
        "encoder_dim": 8,
        "latent_dim": 256,
        "decoder_dim": 256,
        "decoder_rates": [5, 5, 4, 4, 2],
        "decoder_kernel_sizes": [9, 9, 8, 8, 4],
        "resblock_kernel_sizes": [7],
        "resblock_dilation_sizes": [[1, 3]],
    }
    return config


def video_vae_config(statistics: Statistics | None = None) -> VideoVAEConfig:
    """The same as h3serve reads it."""
    raw = video_vae(statistics)
    return VideoVAEConfig.from_dict({**raw, **raw["source"]})


def audio_vae_config(statistics: Statistics | None = None) -> AudioVAEConfig:
    """The same as h3serve reads it."""
    return AudioVAEConfig.from_dict(audio_vae(statistics))
