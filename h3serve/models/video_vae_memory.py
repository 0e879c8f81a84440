"""How many tiles of the video VAE go through a network at once."""

from __future__ import annotations

from h3serve.core.capacity import Tiles
from h3serve.models.video_vae import VideoVAE
from h3serve.models.video_vae_config import VideoVAEConfig

# Tensors of the widest kind that live at the same time, from peaks measured on one GPU with the fused kernels.
DECODE_TENSORS = 12  # float32 [tokens, width]: both halves of the feed-forward, residual, queries, keys, values
ENCODE_TENSORS = 4  # float32 [channels, 17, 256, 256]: skip, result, the one before, operand and statistics
SHARE = 16  # of a device's memory, one part is for tiles in flight: 28 decoded and 4 encoded ones on 140 GB


def decode_tile_bytes(config: VideoVAEConfig) -> int:
    """Peak bytes that one more tile of a window adds."""
    tokens = config.window_latents * (config.tile_size // config.space_ratio) ** 2
    return DECODE_TENSORS * 4 * tokens * config.width


def encode_tile_bytes(config: VideoVAEConfig) -> int:
    """Peak bytes that one more tile of a chunk adds."""
    return ENCODE_TENSORS * 4 * config.channels[0] * config.clip_length * config.tile_size**2


def fit_tiles(vae: VideoVAE, tile_bytes: int) -> None:
    """Set both tile batches to what fits in `tile_bytes` beside the weights, one tile at least.

    Whoever sets it from a device's total memory, not from what is free, gets the same bits each time.
    """
    vae.tile_batch = max(1, tile_bytes // decode_tile_bytes(vae.config))
    vae.encode_tile_batch = max(1, tile_bytes // encode_tile_bytes(vae.config))


def tiles_of(vae: VideoVAE) -> Tiles:
    """Its tiles as they are batched now."""
    config = vae.config
    return Tiles(encode_tile_bytes(config), decode_tile_bytes(config), vae.encode_tile_batch, vae.tile_batch)
