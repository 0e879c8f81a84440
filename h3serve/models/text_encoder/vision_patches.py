"""Images and videos as the text encoder's patches (spec/text_encoder.md 7.4, 7.5, 7.9b).

Stands in for the image and video processors of transformers, whose video half needs torchvision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from h3serve.core.encoder_tokens import (
    FRAMES_PER_BLOCK,
    IMAGE_PIXELS,
    SAMPLE_STEP,
    SQUARE,
    VIDEO_PIXELS,
    EncoderSize,
    image_size,
    video_size,
)
from h3serve.core.errors import CheckpointError

PATCH = 16
MERGE = SQUARE // PATCH
MIDDLE = 127.5  # mean 0.5 and deviation 0.5 of [0, 1], on the 0..255 scale

Grid = tuple[int, int, int]  # (frame pairs, patches down, patches across)


def image_grid(width: int, height: int) -> Grid:
    """The grid of an image of this size in pixels."""
    size = image_size(width, height)
    return 1, size.height // PATCH, size.width // PATCH


def video_grid(sampled: int, width: int, height: int) -> Grid:
    """The grid of a video of `sampled` frames, at 2 fps, of this size in pixels."""
    size = video_size(sampled, width, height)
    return -(-sampled // FRAMES_PER_BLOCK), size.height // PATCH, size.width // PATCH


def image_patches(pixels: np.ndarray) -> tuple[torch.Tensor, Grid]:
    """uint8 `[H, W, 3]` -> float32 patches `[n, 1536]` in [-1, 1] and their grid.

    The one frame is shown twice.
    """
    height, width, _ = pixels.shape
    frames = _resize(pixels[None], image_size(width, height))
    return _patches(frames), image_grid(width, height)


def video_patches(frames: np.ndarray) -> tuple[torch.Tensor, Grid]:
    """uint8 `[F, H, W, 3]` at 24 fps -> float32 patches `[n, 1536]` in [-1, 1] and their grid.

    Every 12th frame is taken; if their number is odd the last is shown twice.
    """
    seen = frames[::SAMPLE_STEP]
    count, height, width, _ = seen.shape
    return _patches(_resize(seen, video_size(count, width, height))), video_grid(count, width, height)


def _resize(frames: np.ndarray, size: EncoderSize) -> torch.Tensor:
    """uint8 `[F, H, W, 3]` -> uint8 `[F, 3, h, w]`.

    On uint8 and not on float: torch's integer filter is the one torchvision, and so the reference,
    uses; it rounds between its two passes.
    """
    pixels = torch.from_numpy(np.require(frames, requirements=["C", "W"])).permute(0, 3, 1, 2)
    if pixels.shape[2:] == (size.height, size.width):
        return pixels
    return F.interpolate(pixels, (size.height, size.width), mode="bicubic", antialias=True)


def _patches(frames: torch.Tensor) -> torch.Tensor:
    """uint8 `[F, 3, h, w]` -> float32 `[n, 3*2*16*16]`, the patches of a square together."""
    if len(frames) % FRAMES_PER_BLOCK:
        frames = torch.cat([frames, frames[-1:]])
    count, channels, height, width = frames.shape
    squares = frames.reshape(
        count // FRAMES_PER_BLOCK,
        FRAMES_PER_BLOCK,
        channels,
        height // SQUARE,
        MERGE,
        PATCH,
        width // SQUARE,
        MERGE,
        PATCH,
    )
    # -> pair, square down, square across, patch down, patch across, channel, frame, y, x
    patches = squares.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).flatten(5).flatten(0, 4)
    return patches.float().sub_(MIDDLE).div_(MIDDLE)


# What the release's processor settings say, or leave at their defaults; a file may omit any of it.
_SETTINGS: dict[str, Any] = {
    "patch_size": PATCH,
    "temporal_patch_size": FRAMES_PER_BLOCK,
    "merge_size": MERGE,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "resample": 3,  # bicubic
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
}


def check_processor(image: Mapping[str, Any], video: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a checkpoint's processor settings ask for other patches than these.

    `image` and `video` are the parsed `preprocessor_config.json` and
    `video_preprocessor_config.json`. Guards the traps of 7.4 and 7.5: a smaller default image
    area, and a cap per frame.
    """
    for file, given, (smallest, largest) in (
        ("preprocessor_config.json", image, IMAGE_PIXELS),
        ("video_preprocessor_config.json", video, VIDEO_PIXELS),
    ):
        size = {"shortest_edge": smallest, "longest_edge": largest}
        limits = {"size": size, "min_pixels": smallest, "max_pixels": largest}
        for field, ours in (_SETTINGS | limits | {"cap_pixels_per_frame": False}).items():
            value = given.get(field)
            if value is not None and value != ours:
                raise CheckpointError(f"{file}: {field} is {value!r}, only {ours!r} is implemented")
    assert image_grid(1344, 768) == (1, 48, 84)
    assert video_grid(11, 1344, 768) == (6, 48, 84)
