"""The pieces of a packed sequence, in order, and how many rows each has (spec/packing.md 3.1-3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h3serve.core.geometry import (
    PIXELS_PER_LATENT,
    SAMPLES_PER_AUDIO_LATENT,
    Size,
    audio_latents,
    latent_frames,
    reference_frames,
    rows_per_frame,
)

SegmentKind = Literal["keyframe", "image", "video", "audio", "target"]


@dataclass(frozen=True)
class Segment:
    """A condition or the target: pixel size and latent frames of what is seen, audio latents per channel.

    `is_last` tells keyframes apart; an audio reference has no size; a silent video has no audio latents.
    """

    kind: SegmentKind
    size: Size | None = None
    latent_frames: int = 0
    audio_latents: int = 0
    is_last: bool = False

    @property
    def video_rows(self) -> int:
        """Rows of the video kind."""
        return self.latent_frames * rows_per_frame(self.size) if self.size else 0

    @property
    def audio_rows(self) -> int:
        """Rows of the audio kind: left channel, then right."""
        return 2 * self.audio_latents

    @property
    def rows(self) -> int:
        """Packed rows of both kinds."""
        return self.video_rows + self.audio_rows

    @property
    def latent_size(self) -> tuple[int, int]:
        """(height, width) in latents; only of what is seen."""
        assert self.size is not None
        return self.size[1] // PIXELS_PER_LATENT, self.size[0] // PIXELS_PER_LATENT


def keyframe(canvas: Size, *, is_last: bool) -> Segment:
    """A first or last frame, encoded on the target canvas."""
    return Segment("keyframe", canvas, 1, is_last=is_last)


def image(size: Size) -> Segment:
    """An image reference at its own size."""
    return Segment("image", size, 1)


def video(size: Size, frames: int, samples: int) -> Segment:
    """A video reference of `frames` frames at 24 fps and `samples` of audio at 32 kHz (0: silent)."""
    return Segment("video", size, latent_frames(reference_frames(frames)), audio_latents_of(samples))


def audio(samples: int) -> Segment:
    """An audio reference of `samples` at 32 kHz."""
    return Segment("audio", audio_latents=audio_latents_of(samples))


def target(canvas: Size, frames: int) -> Segment:
    """The video that is generated with its audio: `frames` is 17n+5."""
    return Segment("target", canvas, latent_frames(frames), audio_latents(frames))


def audio_latents_of(samples: int) -> int:
    """Latents of `samples` at 32 kHz: the encoder pads to a whole hop of 800."""
    return -(-samples // SAMPLES_PER_AUDIO_LATENT)
