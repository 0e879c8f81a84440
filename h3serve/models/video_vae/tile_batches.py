"""How many tiles of the video VAE go through a network at once."""

from __future__ import annotations

from h3serve.core.estimate_memory import Tiles
from h3serve.models.video_vae import video_encoder
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig

# Tensors of the widest kind that live at the same time: as measured on one GPU with the fused kernels.
DECODE_TENSORS = 12  # float32 [tokens, width]: both halves of the feed-forward, residual, queries, keys, values
# float32 [channels, frames, 256, 256] in the second convolution of the encoder's first blocks, beside its padded
# operand: what is skipped to, what the first convolution made, the result. The kernels of torch also hold the
# activation, and their operand is float32 instead of float16.
ENCODE_TENSORS = {True: 3, False: 4}
OPERAND_BYTES = {True: 2, False: 4}
SHARE = 16  # of a device's memory, one part is for tiles in flight: 28 decoded and 4 encoded ones on 140 GB


def decode_tile_bytes(config: VideoVAEConfig) -> int:
    """Peak bytes that one more tile of a window adds."""
    tokens = config.window_latents * (config.tile_size // config.space_ratio) ** 2
    return DECODE_TENSORS * 4 * tokens * config.width


def encode_tile_bytes(config: VideoVAEConfig, frames: int, *, fused: bool) -> int:
    """Peak bytes that one more tile of `frames` frames adds; `fused`: by `video_encoder_triton.py`, not by torch."""
    tensors = ENCODE_TENSORS[fused] * 4 * frames * config.tile_size**2
    operand = OPERAND_BYTES[fused] * (frames + 2) * (config.tile_size + 2) ** 2
    return config.channels[0] * (tensors + operand)


def fit_tiles(vae: VideoVAE, tile_bytes: int) -> None:
    """Set both tile batches to what fits in `tile_bytes` beside the weights, one tile at least.

    Whoever sets it from a device's total memory, not from what is free, gets the same bits each time.
    """
    vae.tile_batch = max(1, tile_bytes // decode_tile_bytes(vae.config))
    vae.encode_tile_batch = max(1, tile_bytes // tiles_of(vae).encode_bytes)


def tiles_of(vae: VideoVAE) -> Tiles:
    """Its tiles as they are computed and batched now."""
    one = one_tile(vae.config, fused=vae.encoder.trunk is not video_encoder.trunk)
    return one._replace(encode_batch=vae.encode_tile_batch, decode_batch=vae.tile_batch)


def one_tile(config: VideoVAEConfig, *, fused: bool) -> Tiles:
    """Tiles that go through one at a time."""
    encoded, image = (encode_tile_bytes(config, frames, fused=fused) for frames in (config.clip_length, 1))
    return Tiles(encoded, image, decode_tile_bytes(config))
