"""Rendered scenes as rows of the transformer, many at a time: what the VAEs make of single clips in a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from demo.train.device import fastest
from demo.train.folded_encoder import moments as folded_moments
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.video_vae.video_vae import PIXEL_MEAN, PIXEL_STD, Moments, VideoVAE, constant

TokensOf = Callable[[Tensor], Tensor]  # pixels [B,3,D,H,W] -> moments [B,48,d,h,w]
VOXELS = {"cuda": 12_000_000, "cpu": 1_000_000}  # that go through the encoder at once


@dataclass(frozen=True)
class Encoders:
    """The two trained VAEs, and the quickest way to run the video encoder here."""

    video: VideoVAE
    audio: AudioVAE
    moments: TokensOf

    @property
    def device(self) -> torch.device:
        return self.video.quant_conv.weight.device


@torch.no_grad()
def make_encoders(video: VideoVAE, audio: AudioVAE) -> Encoders:
    """Tries the ways there are on this device; on a CPU the ordinary one."""
    device = video.quant_conv.weight.device

    def plain(pixels: Tensor) -> Tensor:
        moments: Tensor = video.quant_conv(video.encoder(pixels))
        return moments

    def folded(pixels: Tensor) -> Tensor:
        return folded_moments(video, pixels, torch.bfloat16)

    ways: dict[str, TokensOf] = {"plain": plain, "folded": folded}
    if device.type == "cpu":
        return Encoders(video, audio, plain)
    pixels = torch.randn(64, 3, 17, 96, 128, device=device)
    chosen = fastest({name: lambda way=way: way(pixels) for name, way in ways.items()}, device)
    error = (ways[chosen](pixels) - plain(pixels)).norm() / plain(pixels).norm()
    print(f"video encoder: {chosen}, differs by {float(error):.4f}", flush=True)  # noqa: T201
    return Encoders(video, audio, ways[chosen] if float(error) < 0.05 else plain)


@torch.no_grad()
def video_moments(encoders: Encoders, frames: Tensor) -> Moments:
    """Of uint8 [B, F, H, W, 3] with F = 1 or 17n+5: float32 [B, 24, T, h, w] each; H and W fit into one tile."""
    config, device = encoders.video.config, frames.device
    count, length = frames.shape[:2]
    if length > 1:
        repeat = -length % config.clip_length
        frames = torch.cat([frames, frames[:, -1:].expand(-1, repeat, -1, -1, -1)], dim=1)
        frames = frames.unflatten(1, (-1, config.clip_length)).flatten(0, 1)
    at_once = max(1, VOXELS[device.type] // frames[0, ..., 0].numel())
    parts = []
    for chunk in frames.split(at_once):
        pixels = (chunk.float() / 255.0 - constant(PIXEL_MEAN, device)) / constant(PIXEL_STD, device)
        parts.append(encoders.moments(pixels.permute(0, 4, 1, 2, 3).contiguous()).float())
    moments = torch.cat(parts).unflatten(0, (count, -1)).transpose(1, 2).flatten(2, 3)
    if length > 1:
        moments = moments[:, :, : moments.shape[2] - config.token_drop]
    return Moments(*moments.chunk(2, dim=1))


def video_rows(
    encoders: Encoders, frames: Tensor, *, sampled: bool, generator: torch.Generator | None = None
) -> Tensor:
    """Normalized rows float16 [B, rows, 96]: a condition is a sample of its posterior, a target the mean."""
    moments = video_moments(encoders, frames)
    noise = torch.zeros_like(moments.mean)
    if sampled:
        noise = torch.randn(noise.shape, device=noise.device, generator=generator)
    return patch_rows(encoders.video.sample(moments, noise)).half()


def patch_rows(latents: Tensor) -> Tensor:
    """[B, 24, T, H, W] -> [B, T*H/2*W/2, 96], as `h3serve.pipeline.packing` does for one."""
    patches = latents.unflatten(4, (-1, 2)).unflatten(3, (-1, 2))  # B, c, t, y, dy, x, dx
    return patches.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


@torch.no_grad()
def audio_rows(encoders: Encoders, wave: Tensor) -> Tensor:
    """Normalized posterior means float16 [B, 2*T, 32] of float32 [B, 2, n], all of the left channel first."""
    vae = encoders.audio
    padded = F.pad(wave, (0, -wave.shape[2] % vae.config.hop)).flatten(0, 1)[:, None]
    parts: Sequence[Tensor] = padded.split(32)
    trunks = [vae.encoder(part).transpose(1, 2) for part in parts]
    means = torch.cat([vae.mean_proj(vae.pre_block(trunk).transpose(1, 2)) for trunk in trunks])
    latents = (means - vae._stat("latents_mean")) / vae._stat("latents_std")
    return latents.transpose(1, 2).unflatten(0, (-1, 2)).flatten(1, 2).half()
