"""How many tiles of the video VAE go through a network at once."""

from __future__ import annotations

from h3serve.models.video_vae import VideoVAE
from h3serve.models.video_vae_config import VideoVAEConfig

# Tensors of the widest kind that live at the same time, from peaks measured on one GPU.
DECODE_TENSORS = 12  # float32 [tokens, width]: both halves of the feed-forward, residual, queries, keys, values
ENCODE_TENSORS = 6  # float32 [channels, 17, 256, 256]: skip, normalized, two paddings, result, workspace


def decode_tile_bytes(config: VideoVAEConfig) -> int:
    """Peak bytes that one more tile of a window adds."""
    tokens = config.window_latents * (config.tile_size // config.space_ratio) ** 2
    return DECODE_TENSORS * 4 * tokens * config.width


def encode_tile_bytes(config: VideoVAEConfig) -> int:
    """Peak bytes that one more tile of a chunk adds."""
    return ENCODE_TENSORS * 4 * config.channels[0] * config.clip_length * config.tile_size**2


def fit_tiles(vae: VideoVAE, free_bytes: int) -> None:
    """Set both tile batches to what fits in `free_bytes` beside the weights, one tile at least."""
    vae.tile_batch = max(1, free_bytes // decode_tile_bytes(vae.config))
    vae.encode_tile_batch = max(1, free_bytes // encode_tile_bytes(vae.config))
