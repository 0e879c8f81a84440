"""Names, orders and dtypes of the video VAE's tensors, as data (spec/checkpoint.md 1.8, vae_video.md 5.5)."""

from __future__ import annotations

import torch

from h3serve.models.key_map import Entry, split_heads_interleaved, swap_halves
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig

# Ours (the original names) to diffusers', in this order.
DIFFUSERS_NAMES = (
    (".down.", ".down_blocks."),
    (".block.", ".resnets."),
    (".nin_shortcut.", ".conv_shortcut."),
    (".downsample.", ".downsamplers.0."),
    (".x_embedder.", ".proj_in."),
    (".to_out.", ".to_out.0."),
    (".ff.w1.", ".ff.net.0.proj."),
    (".ff.w2.", ".ff.net.2."),
)
DECODER_MATRICES = ("post_quant_conv.", ".attn.", ".ff.")  # what autocast rounds in the release


def original_entry(name: str, config: VideoVAEConfig) -> Entry:
    """The rows of QKV are grouped by head in the file."""
    if ".to_qkv." in name:
        return Entry(name, (name,), *split_heads_interleaved(config.heads, config.head_dim))
    return Entry(name, (name,))


def diffusers_entry(name: str) -> Entry:
    """QKV is split in the file, and the feed-forward's input is [up; gate]."""
    if ".to_qkv." in name:
        return Entry(name, tuple(name.replace("to_qkv", part) for part in ("to_q", "to_k", "to_v")))
    theirs = name
    for our_part, their_part in DIFFUSERS_NAMES:
        theirs = theirs.replace(our_part, their_part)
    if ".w1." in name:
        return Entry(name, (theirs,), swap_halves, swap_halves)
    return Entry(name, (theirs,))


def param_dtype(name: str, decoder_dtype: torch.dtype, encoder_dtype: torch.dtype = torch.float32) -> torch.dtype:
    """dtype of VideoVAE's parameter `name`.

    `decoder_dtype` is that of the decoder's matrices: float16 on CUDA is the release's recipe, and gives
    the numbers of float32 weights under float16 autocast. `encoder_dtype` is that of the convolutions'
    operands in the encoder's levels. All else is float32.
    """
    if any(part in name for part in DECODER_MATRICES):
        return decoder_dtype
    if name.startswith("encoder.down.") and name.endswith(".weight") and ".norm" not in name:
        return encoder_dtype
    return torch.float32
