"""How many text tokens an image or video becomes, by arithmetic alone.

The encoder sees images and videos in squares of 32 pixels a side: one token per square and, for
videos, per pair of frames sampled at 2 fps (spec/text_encoder.md 7.4, 7.5).
"""

from __future__ import annotations

import math
from typing import NamedTuple

SQUARE = 32  # pixels a side of one token: patches of 16, merged 2 x 2
DELIMITERS = 2  # <|vision_start|> and <|vision_end|> around every block
SAMPLE_STEP = 12  # 24 fps -> 2 fps
FRAMES_PER_BLOCK = 2
MIN_SAMPLED_FRAMES = 2
IMAGE_PIXELS = (65_536, 16_777_216)  # smallest and largest area
VIDEO_PIXELS = (4_096, 25_165_824)  # smallest and largest frames * area


class EncoderSize(NamedTuple):
    """Pixels, width first."""

    width: int
    height: int


class VideoBlocks(NamedTuple):
    """The vision blocks of one video: how many, and the tokens of each, delimiters included."""

    blocks: int
    tokens: int


def image_size(width: int, height: int) -> EncoderSize:
    """The size at which the encoder sees an image of `width` x `height` pixels (7.4)."""
    return _fit(width, height, frames=1, counted=1, limits=IMAGE_PIXELS)


def sampled_frames(frames: int) -> int:
    """How many of a 24 fps video's frames the encoder sees: every 12th, the first included (7.5)."""
    return -(-frames // SAMPLE_STEP)


def video_size(frames: int, width: int, height: int) -> EncoderSize:
    """The size at which the encoder sees `frames` already sampled frames (7.5).

    The budget counts frames rounded to even, half to even, and there is no cap per frame.
    """
    assert frames >= MIN_SAMPLED_FRAMES and min(width, height) >= SQUARE
    counted = round(frames / FRAMES_PER_BLOCK) * FRAMES_PER_BLOCK
    return _fit(width, height, frames=frames, counted=counted, limits=VIDEO_PIXELS)


def vision_tokens(width: int, height: int) -> int:
    """Tokens of the vision block of a `width` x `height` image, both delimiters included."""
    return _squares(image_size(width, height)) + DELIMITERS


def video_blocks(frames: int, width: int, height: int) -> VideoBlocks:
    """The vision blocks of a video of `frames` frames at 24 fps; timestamps are not counted."""
    sampled = sampled_frames(frames)
    tokens = _squares(video_size(sampled, width, height)) + DELIMITERS
    return VideoBlocks(-(-sampled // FRAMES_PER_BLOCK), tokens)


def _squares(size: EncoderSize) -> int:
    return (size.width // SQUARE) * (size.height // SQUARE)


def _fit(width: int, height: int, *, frames: int, counted: int, limits: tuple[int, int]) -> EncoderSize:
    """Nearest multiples of 32; if their volume leaves the limits, the sides are scaled together."""
    smallest, largest = limits
    nearest = EncoderSize(round(width / SQUARE) * SQUARE, round(height / SQUARE) * SQUARE)
    volume = counted * nearest.width * nearest.height
    if volume > largest:
        shrink = math.sqrt(frames * width * height / largest)
        return EncoderSize(_whole_squares(width / shrink), _whole_squares(height / shrink))
    if volume < smallest:
        grow = math.sqrt(smallest / (frames * width * height))
        return EncoderSize(_enough_squares(width * grow), _enough_squares(height * grow))
    return nearest


def _whole_squares(side: float) -> int:
    return max(SQUARE, math.floor(side / SQUARE) * SQUARE)


def _enough_squares(side: float) -> int:
    return math.ceil(side / SQUARE) * SQUARE
