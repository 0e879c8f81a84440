"""Latents to packed rows and back (spec/transformer.md 2.1): a video row is a 2x2 patch, channel-major."""

from __future__ import annotations

from torch import Tensor


def video_to_rows(latents: Tensor) -> Tensor:
    """[1,24,T,H,W] -> [T*H/2*W/2, 96]; index in a row is channel*4 + dy*2 + dx."""
    _, channels, frames, height, width = latents.shape
    patches = latents[0].reshape(channels, frames, height // 2, 2, width // 2, 2)
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * 4)


def rows_to_video(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse; `shape` is [1,24,T,H,W]."""
    _, channels, frames, height, width = shape
    patches = rows.reshape(frames, height // 2, width // 2, channels, 2, 2)
    return patches.permute(3, 0, 1, 4, 2, 5).reshape(shape)


def audio_to_latents(rows: Tensor) -> Tensor:
    """[2*T, 32] (left channel, then right) -> [2, 32, T]."""
    return rows.reshape(2, -1, rows.shape[1]).transpose(1, 2)
