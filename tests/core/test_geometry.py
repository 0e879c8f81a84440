"""The size tables of spec/packing.md 3.1 and spec/tasks_and_validation.md 8.4-8.5."""

import pytest

from h3serve.core import geometry as g
from h3serve.core.errors import RequestError

CANVASES = """
21:9 768 1536 672 | 16:9 768 1344 768 | 1280:720 768 1344 768 | 7:4 768 1344 768 | 3:2 768 1152 768 | 2:1 768 1440 704
4:3 768 1024 768 | 3:4 768 768 1024 | 1:1 768 768 768 | 9:16 768 768 1344 | 4:1 768 2016 512 | 1:4 768 512 2016
16:9 512 896 512 | 16:9 544 960 544 | 16:9 480 864 480 | 1:1 1024 1024 1024 | 16:9 1024 1344 768
4:3 64 96 64 | 10:9 288 320 288
"""


@pytest.mark.parametrize("case", [c.split() for c in CANVASES.replace("\n", "|").split("|") if c.strip()])
def test_canvas(case: list[str]) -> None:
    ratio, short, width, height = case
    assert g.canvas_size(g.parse_ratio(ratio), int(short)) == (int(width), int(height))


@pytest.mark.parametrize(
    ("seconds", "frames", "latents", "audio"),
    [
        (4, 107, 32, 178),
        (5, 124, 37, 207),
        (6, 158, 47, 263),
        (8, 192, 57, 320),
        (10, 243, 72, 405),
        (12, 294, 87, 490),
        (15, 362, 107, 603),
    ],
)
def test_lengths(seconds: int, frames: int, latents: int, audio: int) -> None:
    assert g.aligned_frames(seconds * g.FPS) == frames
    assert g.latent_frames(frames) == latents
    assert g.audio_latents(frames) == audio
    assert abs(audio / 40 - frames / 24) <= 1 / 120 + 1e-9


@pytest.mark.parametrize(("frames", "kept"), [(21, 0), (22, 22), (38, 22), (39, 39), (60, 56), (124, 124), (362, 362)])
def test_reference_clips_round_down(frames: int, kept: int) -> None:
    assert g.reference_frames(frames) == kept


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((512, 512), "diffusers", (2048, 2048)),
        ((1920, 1080), "diffusers", (3648, 2048)),
        ((512, 512), "max", (512, 512)),
        ((4096, 4096), "max", (2048, 2048)),
        ((512, 512), "match", (512, 512)),
        ((2688, 1536), "match", (1344, 768)),
        ((40, 40), "max", (32, 32)),  # the nearest multiple of 32, which is never 0
        ((20, 60), "max", (32, 64)),
        ((9, 9), "max", (32, 32)),
    ],
)
def test_reference_picture(size: tuple[int, int], mode: str, expected: tuple[int, int]) -> None:
    assert g.reference_image_size(size, mode, (1344, 768)) == expected


def test_rows_per_frame() -> None:
    assert g.rows_per_frame((1344, 768)) == 1008
    assert g.rows_per_frame((96, 64)) == 6


@pytest.mark.parametrize(("text", "ratio"), [("999999:999999", 1.0), ("999999:500000", 1.999998), ("1:4", 0.25)])
def test_ratios(text: str, ratio: float) -> None:
    assert g.parse_ratio(text) == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize(
    "text", ["1000000:1000000", "0:1", "1:0", "4.0:1", "41:10", "10:41", "16/9", "-1:-1", "²:1", ""]
)
def test_ratios_that_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="aspect_ratio"):
        g.parse_ratio(text)


def test_a_small_checkpoint_s_rules_hold_for_every_medium() -> None:
    """At 4:3 an area of 160 x 128 caps a short edge of 192 to (165.2, 123.9); then come multiples of 32."""
    rules = g.SizeRules(max_canvas_area=160 * 128, picture_short_edge=64, clip_short_edge=192)
    assert g.canvas_size(4 / 3, 192, rules) == g.reference_video_size(4 / 3, rules) == (160, 128)
    assert g.reference_image_size((200, 100), "diffusers", (96, 64), rules) == (128, 64)
