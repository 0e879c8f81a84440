"""Every size rule of the model, as plain arithmetic (spec/packing.md 3.1, spec/tasks_and_validation.md 8.4-8.6).

Sizes are (width, height) pairs called canvas or size; frames are pixel frames at 24 fps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from h3serve.core.errors import RequestError
from h3serve.core.limits import LIMITS

FPS = 24
SAMPLE_RATE = 32_000
SAMPLES_PER_AUDIO_LATENT = 800
AUDIO_LATENTS_PER_SECOND = 40
LATENT_CHANNELS = 24
AUDIO_LATENT_CHANNELS = 32
PIXELS_PER_LATENT = 16
PIXELS_PER_ROW = 32  # one packed row is a 2x2 patch of latents

Size = tuple[int, int]


@dataclass(frozen=True)
class SizeRules:
    """Pixel sizes the weights were trained for; a small checkpoint may carry smaller ones."""

    max_canvas_area: int = 768 * 1344
    picture_short_edge: int = 2048  # image references
    clip_short_edge: int = 768  # video references


RELEASED_SIZES = SizeRules()


def aligned_frames(frames: int) -> int:
    """The smallest 17n+5 that is >= `frames`: the only lengths the video VAE makes."""
    return frames + (5 - frames) % 17


def reference_frames(frames: int) -> int:
    """The largest 17k+5 (k >= 1) that is <= `frames`, or 0 below 22: what the VAE takes of a video."""
    return frames - (frames - 5) % 17 if frames >= 22 else 0


def latent_frames(frames: int) -> int:
    """17n+5 pixel frames -> 5n+2 latent frames; a single image -> 1."""
    return 1 if frames == 1 else (frames - 5) // 17 * 5 + 2


def audio_latents(frames: int) -> int:
    """Audio latents per channel of a target of `frames` pixel frames (spec/packing.md 3.1)."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)


def parse_ratio(text: str, field: str = "target.aspect_ratio") -> float:
    """'W:H' -> W/H, within 1:4 and 4:1."""
    width, colon, height = text.partition(":")
    if not (colon and width.isascii() and width.isdigit() and height.isascii() and height.isdigit()):
        raise RequestError(field, text, "use auto or W:H with whole numbers, such as 16:9")
    if int(width) == 0 or int(height) == 0 or len(width) > 6 or len(height) > 6:
        raise RequestError(field, text, "both numbers must be from 1 to 999999")
    return check_ratio(int(width) / int(height), text, field)


def check_ratio(ratio: float, shown: object, field: str) -> float:
    """`ratio` itself, or a RequestError: the model knows videos from 1:4 to 4:1."""
    if not LIMITS.min_ratio <= ratio <= LIMITS.max_ratio:
        raise RequestError(field, shown, "the ratio of width to height must be from 1:4 to 4:1")
    return ratio


def canvas_size(ratio: float, short_edge: int, rules: SizeRules = RELEASED_SIZES) -> Size:
    """(width, height) in pixels: short edge first, area cap next, then the nearest multiples of 32.

    Rounding is half-even and comes after the cap, so the area may end slightly above it
    (spec/tasks_and_validation.md 8.4).
    """
    width, height = (short_edge * ratio, float(short_edge)) if ratio >= 1 else (float(short_edge), short_edge / ratio)
    if width * height > rules.max_canvas_area:
        scale = math.sqrt(rules.max_canvas_area / (width * height))
        width, height = width * scale, height * scale
    return _nearest_32(width), _nearest_32(height)


def reference_image_size(size: Size, mode: str, canvas: Size, rules: SizeRules = RELEASED_SIZES) -> Size:
    """(width, height) of an image reference in mode `diffusers`, `max` or `match` (spec 8.5)."""
    width, height = size
    scale = rules.picture_short_edge / min(width, height)
    if mode == "max":
        scale = min(1.0, scale)
    elif mode == "match":
        scale = min(1.0, math.sqrt(canvas[0] * canvas[1] / (width * height)))
    return _nearest_32(width * scale), _nearest_32(height * scale)


def reference_video_size(ratio: float, rules: SizeRules = RELEASED_SIZES) -> Size:
    """Canvas of a reference video: its own aspect at its own short edge, whatever the target is (spec 8.6)."""
    return canvas_size(ratio, rules.clip_short_edge, rules)


def rows_per_frame(size: Size) -> int:
    """Packed rows of one latent frame."""
    return (size[0] // PIXELS_PER_ROW) * (size[1] // PIXELS_PER_ROW)


def _nearest_32(value: float) -> int:
    return max(32, round(value / 32) * 32)


def tiles_along(length: int, *, tile: int, overlap: int) -> int:
    """The fewest tiles that cover `length` with overlaps of at least `overlap` (spec/vae_video.md 5.4)."""
    return 1 + max(0, -(-(length - tile) // (tile - overlap)))
