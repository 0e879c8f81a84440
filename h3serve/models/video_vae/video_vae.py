"""The video VAE: 17n+5 frames and 5n+2 latents into each other (spec/vae_video.md).

Encoding: independent chunks of 17 frames, each split into tiles of 256 px; the last 3 latents of the
whole video are dropped. Decoding: windows of 7 latents every 5, each tiled and stitched before it
fades over from the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from h3serve.models.key_map import KeyMap, Layout
from h3serve.models.video_vae.tiling import Axis, cross_fade, split_axis, split_tiles, stitch
from h3serve.models.video_vae.video_decoder import VideoDecoder
from h3serve.models.video_vae.video_encoder import VideoEncoder
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig, diffusers_entry, original_entry, param_dtype

PIXEL_MEAN = (0.485, 0.456, 0.406)  # ImageNet, on [0, 1]
PIXEL_STD = (0.229, 0.224, 0.225)

Network = Callable[[torch.Tensor], torch.Tensor]
RunTiles = Callable[[Network, list[torch.Tensor], int], list[torch.Tensor]]  # tiles of one shape, so many at once


class Moments(NamedTuple):
    """Posterior of an encoded video, before normalization: float32 `[1,24,T,h,w]` each."""

    mean: torch.Tensor
    logvar: torch.Tensor


class VideoVAE(nn.Module):
    """Both directions of the video VAE, in the dtypes of its weights: see `param_dtype`.

    `tile_batch` tiles go through the decoder at once, `encode_tile_batch` tiles of 17 frames
    through the encoder: memory against speed, equal to rounding (`fit_tiles`). `run_tiles` may be
    exchanged for one that computes tiles elsewhere.
    """

    def __init__(self, config: VideoVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.tile_batch = 1
        self.encode_tile_batch = 1
        self.run_tiles: RunTiles = in_batches
        self.encoder = VideoEncoder(config)
        self.quant_conv = nn.Conv3d(2 * config.latent_channels, 2 * config.latent_channels, 1)
        self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, 1)
        self.decoder = VideoDecoder(config)

    @torch.no_grad()
    def encode(self, pixels: torch.Tensor) -> Moments:
        """Moments of `pixels` float32 `[1,3,D,H,W]`, made by `normalize_pixels` (spec 5.3).

        H and W are multiples of 16. One frame gives one latent. More are padded to whole chunks by
        repeating the last frame, and the last 3 latents are dropped: 17n+5 frames give 5n+2
        latents. `pixels` may lie on another device.
        """
        device = self.quant_conv.weight.device
        return self._encode(pixels.split(self.config.clip_length, dim=2), lambda chunk: chunk.to(device))

    @torch.no_grad()
    def encode_frames(self, frames: torch.Tensor) -> Moments:
        """`encode` of uint8 `[F,H,W,3]`, as a rule in host memory: the device sees one chunk at a time."""
        device = self.quant_conv.weight.device
        return self._encode(frames.split(self.config.clip_length), lambda chunk: normalize_pixels(chunk.to(device)))

    def _encode(self, chunks: Sequence[torch.Tensor], prepare: Network) -> Moments:
        """Moments of chunks that `prepare` makes normalized pixels on the device."""
        parts = [self._encode_chunk(self._whole(prepare(chunk), alone=len(chunks) == 1)) for chunk in chunks]
        moments = torch.cat(parts, dim=2)
        if moments.shape[2] > 1:
            moments = moments[:, :, : moments.shape[2] - self.config.token_drop]
        return Moments(*moments.chunk(2, dim=1))

    def _whole(self, pixels: torch.Tensor, *, alone: bool) -> torch.Tensor:
        """A chunk of full length, its last frame repeated; a single frame that is `alone` stays one."""
        missing = -pixels.shape[2] % self.config.clip_length
        if not missing or (alone and pixels.shape[2] == 1):
            return pixels
        return torch.cat([pixels, pixels[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)

    def sample(self, moments: Moments, noise: torch.Tensor) -> torch.Tensor:
        """Normalized latents float32 from the posterior and normal `noise` of its shape (spec 5.3).

        They pass through float16 on the way, as in the release.
        """
        std = (0.5 * moments.logvar.clamp(-30.0, 20.0)).exp()
        latents = (moments.mean + std * noise.to(std.device)).half().float()
        mean, std = self._latent_statistics(latents.device)
        return (latents - mean) / std

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        """Frames float32 `[F,H,W,3]` in [0, 1], window by window, of normalized latents (spec 5.4).

        `latents` are float32 `[1,24,T,h,w]`. 17 frames per window and the last 5 at the end, in all
        17n+5 for T = 5n+2. Any other T from 3 up is filled by repeating the last latent and its
        frames are cut. NaN and Inf both come out as NaN; nothing here waits for the device, so
        the caller checks.
        """
        mean, std = self._latent_statistics(latents.device)
        latents = latents * std + mean
        step, window = self.config.chunk_latents, self.config.window_latents
        left = self.frames_of(latents.shape[2])
        fill = -(latents.shape[2] - (window - step)) % step
        latents = torch.cat([latents, latents[:, :, -1:].expand(-1, -1, fill, -1, -1)], dim=2)
        tail: torch.Tensor | None = None
        for start in range(0, latents.shape[2] - (window - step), step):
            body, next_tail = self._decode_window(latents[:, :, start : start + window])
            if tail is not None:
                body = cross_fade(tail, body, tail.shape[2], dim=2)
            tail = next_tail
            if left > 0:
                yield self._frames(body[:, :, :left])
            left -= body.shape[2]
        if tail is not None and left > 0:
            yield self._frames(tail[:, :, :left])

    def decode_all(self, latents: torch.Tensor) -> torch.Tensor:
        """All frames of `decode` in one tensor `[F,H,W,3]`."""
        return torch.cat(list(self.decode(latents)))

    def frames_of(self, latents: int) -> int:
        """Pixel frames of so many latents: the first of each 5 is one frame, the others 4 (spec
        5.2).
        """
        if latents < self.config.window_latents - self.config.chunk_latents + 1:
            raise ValueError(f"{latents} latents are too few to decode")
        leads = -(-latents // self.config.chunk_latents)
        return self.config.time_ratio * latents - self.config.lead_frames * leads

    def _encode_chunk(self, pixels: torch.Tensor) -> torch.Tensor:
        rows, columns = self._tiles(pixels.shape[-2], pixels.shape[-1])
        tiles = split_tiles(pixels, rows, columns)
        batch = self.encode_tile_batch * self.config.clip_length // pixels.shape[2]
        moments = self.run_tiles(self._encode_tile, tiles, batch)
        unit = self.config.space_ratio
        return stitch(moments, rows.per(unit), columns.per(unit))

    def _encode_tile(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.quant_conv(self.encoder(pixels))

    def _decode_window(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raw frames `[1,3,F,H,W]` of one window: the 17 of its body and the 5 that the next one
        fades over from.
        """
        unit = self.config.space_ratio
        rows, columns = self._tiles(latents.shape[-2] * unit, latents.shape[-1] * unit)
        tiles = split_tiles(latents, rows.per(unit), columns.per(unit))
        frames = stitch(self.run_tiles(self._decode_tile, tiles, self.tile_batch), rows, columns)
        body = self.config.chunk_latents * self.config.time_ratio
        lead = self.config.lead_frames
        return frames[:, :, lead:body], frames[:, :, body + lead :].clone()

    def _decode_tile(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(latents.to(self.post_quant_conv.weight.dtype)))

    def _tiles(self, height: int, width: int) -> tuple[Axis, Axis]:
        unit = self.config.space_ratio
        if height % unit or width % unit:
            raise ValueError(f"{height}x{width} pixels are not multiples of {unit}")
        tile, overlap = self.config.tile_size, self.config.tile_overlap
        rows, columns = (split_axis(length, tile=tile, overlap=overlap, unit=unit) for length in (height, width))
        return rows, columns

    def _frames(self, raw: torch.Tensor) -> torch.Tensor:
        """`[1,3,F,H,W]` around zero to `[F,H,W,3]` in [0, 1]; NaN for what is not finite."""
        frames = raw[0].permute(1, 2, 3, 0) * constant(PIXEL_STD, raw.device)
        frames += constant(PIXEL_MEAN, raw.device)
        return frames.clamp(0.0, 1.0).add_(frames.mul_(0.0))  # 0 * Inf is NaN: clamping alone would hide it

    def _latent_statistics(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (constant(v, device) for v in (self.config.latents_mean, self.config.latents_std))
        return mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)


@lru_cache(maxsize=32)
@torch.inference_mode(mode=False)  # who asks first may be inferring, who asks next may be training
def constant(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """float32 values on a device, kept there: to send them anew would wait for all queued work.

    Not a buffer: a module that is built on the meta device would lose it.
    """
    return torch.tensor(values, dtype=torch.float32, device=device)


def in_batches(network: Network, tiles: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
    """`network` of every tile, so many tiles at once; all tiles have one shape."""
    outputs: list[torch.Tensor] = []
    for start in range(0, len(tiles), batch):
        outputs += network(torch.cat(tiles[start : start + batch])).split(len(tiles[0]))
    return outputs


def normalize_pixels(frames: torch.Tensor) -> torch.Tensor:
    """uint8 `[F,H,W,3]` to float32 `[1,3,F,H,W]` with ImageNet's mean and deviation (spec 5.1)."""
    pixels = frames.to(torch.float32, copy=True).div_(255.0)
    pixels.sub_(constant(PIXEL_MEAN, pixels.device)).div_(constant(PIXEL_STD, pixels.device))
    return pixels.permute(3, 0, 1, 2)[None].contiguous()


def to_uint8(frames: torch.Tensor) -> torch.Tensor:
    """float32 in [0, 1] to uint8 of the same shape, contiguous: floor(255 * value)."""
    return (frames.clamp(0.0, 1.0) * 255.0).to(torch.uint8).contiguous()


def key_map(config: VideoVAEConfig, layout: Layout) -> KeyMap:
    """Where each tensor of `VideoVAE` is in a checkpoint (spec/checkpoint.md 1.8)."""
    with torch.device("meta"):
        names = list(VideoVAE(config).state_dict())
    if layout == "original":
        entries = tuple(original_entry(name, config) for name in names)
        return KeyMap(entries, unused=("decoder.mask_token",))  # only training reads it
    return KeyMap(tuple(diffusers_entry(name) for name in names))


def to_compute_dtype(vae: VideoVAE, decoder_dtype: torch.dtype, encoder_dtype: torch.dtype = torch.float32) -> VideoVAE:
    """Casts every parameter in place to its `param_dtype` and returns the same module."""
    for name, parameter in vae.named_parameters():
        parameter.data = parameter.data.to(param_dtype(name, decoder_dtype, encoder_dtype))
    return vae
