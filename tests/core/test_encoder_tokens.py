"""The worked numbers of spec/text_encoder.md 7.4, 7.5 and 7.9b."""

import pytest

from h3serve.core.encoder_tokens import (
    VideoBlocks,
    image_size,
    sampled_frames,
    video_blocks,
    video_size,
    vision_tokens,
)


@pytest.mark.parametrize(
    ("size", "seen", "pads"),
    [
        ((1344, 768), (1344, 768), 1008),
        ((2048, 2048), (2048, 2048), 4096),
        ((3648, 2048), (3648, 2048), 7296),
        ((4096, 2048), (4096, 2048), 8192),
        ((8192, 2048), (8192, 2048), 16384),  # 4:1 is exactly the largest area
        ((96, 64), (320, 224), 70),
        ((64, 64), (256, 256), 64),
        ((8192, 4096), (5792, 2880), 181 * 90),
        ((1350, 770), (1344, 768), 1008),
    ],
)
def test_picture(size: tuple[int, int], seen: tuple[int, int], pads: int) -> None:
    assert image_size(*size) == seen
    assert vision_tokens(*size) == pads + 2


@pytest.mark.parametrize(
    ("frames", "sampled", "seen"),
    [
        (107, 9, (1344, 768)),
        (124, 11, (1344, 768)),
        (243, 21, (1344, 768)),
        (294, 25, (1344, 768)),  # 25 counts as 24: half to even
        (328, 28, (1248, 704)),
        (345, 29, (1216, 704)),
        (362, 31, (1184, 672)),
    ],
)
def test_clip(frames: int, sampled: int, seen: tuple[int, int]) -> None:
    assert sampled_frames(frames) == sampled
    assert video_size(sampled, 1344, 768) == seen
    tokens = seen[0] * seen[1] // 1024 + 2
    assert video_blocks(frames, 1344, 768) == VideoBlocks((sampled + 1) // 2, tokens)


def test_small_clip_is_enlarged_to_the_smallest_volume() -> None:
    assert video_size(2, 32, 32) == (64, 64)
    assert video_size(5, 64, 96) == (64, 96)


def test_no_cap_per_frame() -> None:
    """A cap of 768 tokens a frame would make 1152 x 640 of this."""
    assert video_blocks(124, 1344, 768).tokens == 1008 + 2
