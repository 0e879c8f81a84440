"""Which kernels a quality tier runs the transformer with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from h3serve.core.limits import Quality
from h3serve.models.kernels.attention import eight_bits, fastest, flash4_batched, has_flash4, sdpa
from h3serve.models.kernels.elementwise import PLAIN, Ops
from h3serve.models.kernels.float8_linear import Float8Linear
from h3serve.models.kernels.optional_packages import has_triton
from h3serve.models.transformer.transformer import Transformer
from h3serve.models.video_vae import decoder_ops, video_encoder
from h3serve.models.video_vae.tile_batches import SHARE, fit_tiles
from h3serve.models.video_vae.video_encoder import FUSED_CHANNELS
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig

QUALITIES: tuple[Quality, ...] = ("exact", "lossless", "fast")


def use_quality(transformer: Transformer, quality: Quality, device: torch.device, *, extras: bool = True) -> None:
    """Sets the transformer's attention and ops for a device; weights stay as they are.

    exact: torch's own kernels in the reference's order of roundings. lossless: fused kernels with fewer
    roundings where Triton and a GPU are there, else the same as exact. fast: attention on 8 bits too, for a
    transformer whose linear layers are `Float8Linear`; ValueError if they are not. Without `extras` optional
    packages count as not installed.
    """
    if quality not in QUALITIES:
        raise ValueError(f"tier {quality} is not one of {QUALITIES}")
    if quality == "fast" and not has_float8(transformer):
        raise ValueError("the fast tier needs linear layers of 8 bits")
    transformer.attention, transformer.ops = sdpa, PLAIN
    if quality != "exact":
        transformer.attention = fastest(device, transformer.compute_dtype, extras=extras)
        transformer.ops = _fused(device, has_float8(transformer), extras)
    if quality == "fast":
        transformer.attention = eight_bits(device, transformer.compute_dtype) or transformer.attention


def use_vae_quality(vae: VideoVAE, quality: Quality, device: torch.device, *, extras: bool = True) -> None:
    """Sets the kernels of a video VAE likewise, in both directions, and how many tiles go through at once.

    exact: one tile at a time. lossless, and fast alike: as many as a share of the GPU's memory takes.
    """
    vae.decoder.ops, vae.encoder.trunk = decoder_ops.PLAIN, video_encoder.trunk
    vae.tile_batch = vae.encode_tile_batch = 1
    if quality == "exact" or device.type != "cuda":
        return
    if _has_kernels(device):
        vae.decoder.ops = _decoder_ops(device, extras)
    if fuses_encoder(vae.config, quality, device):
        from h3serve.models.video_vae.video_encoder_triton import trunk

        vae.encoder.trunk = trunk
    fit_tiles(vae, torch.cuda.get_device_properties(device).total_memory // SHARE)


def fuses_encoder(config: VideoVAEConfig, quality: Quality, device: torch.device) -> bool:
    """Whether the video VAE's encoder runs with our kernels: they load by the bulk copy engine that Hopper brought."""
    if quality == "exact" or not _has_kernels(device) or any(n % FUSED_CHANNELS for n in config.channels):
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def _decoder_ops(device: torch.device, extras: bool) -> decoder_ops.DecoderOps:
    from h3serve.models.video_vae.decoder_ops_triton import FUSED

    chosen = replace(FUSED, attention=flash4_batched) if extras and has_flash4(device) else FUSED
    if extras and _has_gated_gemm(device):
        from h3serve.models.kernels.gated_gemm import gated_linear_batched

        chosen = replace(chosen, gated_linear=gated_linear_batched)
    return chosen


def has_float8(module: nn.Module) -> bool:
    """Are there 8-bit layers in it?"""
    return any(isinstance(child, Float8Linear) for child in module.modules())


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and has_triton()


def _has_gated_gemm(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0) and has_flash4(device)


def _fused(device: torch.device, float8: bool, extras: bool) -> Ops:
    if not _has_kernels(device):
        return PLAIN
    from h3serve.models.kernels.elementwise_triton import (  # here, since Triton comes with CUDA builds of torch only
        FUSED,
        FUSED_FLOAT8,
    )

    if float8:
        return FUSED_FLOAT8
    if extras and _has_gated_gemm(device):
        from h3serve.models.kernels.gated_gemm import gated_linear

        return replace(FUSED, gated_linear=gated_linear)
    return FUSED
