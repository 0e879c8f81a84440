"""Everything the world is made of, by name: what a caption may say and a detector may find."""

from __future__ import annotations

from h3serve.core.geometry import (
    FPS,
    SAMPLES_PER_AUDIO_LATENT,
    Size,
    aligned_frames,
    audio_latents,
    canvas_size,
    parse_ratio,
)
from h3serve.core.geometry import SAMPLE_RATE as SAMPLE_RATE
from h3serve.weights.demo.demo_sizes import SIZE_RULES

NAMED_RATIOS = ("21:9", "16:9", "4:3", "1:1", "3:4", "9:16")
SHAPES = ("ball", "box", "triangle", "ring")
COLOURS = {
    "red": (225, 40, 40),
    "green": (40, 190, 70),
    "blue": (50, 110, 255),
    "yellow": (245, 215, 50),
    "purple": (185, 70, 225),
    "white": (245, 245, 245),
}
BACKGROUNDS = {"black": (10, 10, 10), "grey": (105, 105, 105), "dark blue": (15, 20, 85), "brown": (95, 60, 30)}
NEW_BACKGROUNDS = {"teal": (20, 125, 125)}  # the demo checkpoint has never seen: its adapters' (`new_things.py`)
SIZES = {"small": 0.12, "medium": 0.155, "large": 0.20}  # radius, of the canvas' short edge
PITCHES = {"small": ("high", 880.0), "medium": ("mid", 440.0), "large": ("low", 220.0)}  # word, Hz
MATERIALS = {"wooden": "knock", "metal": "chime", "plastic": "beep"}  # and what is heard of them
NEW_MATERIALS = {"glass": "tone"}  # nor heard
SIDES = {"left": 0.25, "middle": 0.5, "right": 0.75}  # x
AMBIENCES = ("none", "wind", "hum")
DETUNE = 0.03  # pitches vary by so much either way

CLIP_FRAMES = 56  # of a reference clip: 3 windows of the video VAE, 2.33 s
PICTURE_CANVAS = (128, 128)
PICTURE_RADIUS = 0.33  # of the thing alone in a reference picture
SOUND_SECONDS = 2.0  # of a reference sound


def canvas_of(ratio: str, short_edge: int) -> Size:
    """(width, height) that a request for `ratio` and `short_edge` gets from the demo checkpoint."""
    return canvas_size(parse_ratio(ratio), short_edge, SIZE_RULES)


def small_canvases(max_area: int = 128 * 224) -> tuple[Size, ...]:
    """Every canvas of the six ratios at short edges 64, 96 and 128 with sides up to 224, smallest first."""
    found = {canvas_of(ratio, edge) for ratio in NAMED_RATIOS for edge in (64, 96, 128)}
    return tuple(
        sorted((c for c in found if max(c) <= 224 and c[0] * c[1] <= max_area), key=lambda c: (c[0] * c[1], c))
    )


def frames_of(seconds: float) -> int:
    """Frames of a clip asked to last `seconds`: 107, 124, 158 for 4, 5, 6."""
    return aligned_frames(round(seconds * FPS))


def samples_of(frames: int) -> int:
    """Samples per channel that go with `frames`."""
    return audio_latents(frames) * SAMPLES_PER_AUDIO_LATENT
