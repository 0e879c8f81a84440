"""What is known of a media file before any full decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MediaKind = Literal["image", "video", "audio"]


@dataclass(frozen=True)
class MediaProbe:
    """One picture, clip or sound as a viewer meets it: rotation and pixel aspect are already applied.

    `width`, `height` are display pixels (0 for sound); `seconds` is the length of the video stream, or of
    the sound where there is no video (0 for a picture); `sound_seconds` the length of its sound.
    """

    kind: MediaKind
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    fps: float | None = None  # average, None where the container does not say
    has_sound: bool = False
    sound_seconds: float = 0.0
    num_bytes: int = 0
    skipped_seconds: float = 0.0  # at the beginning, left out: they lean on frames that were cut off

    @property
    def ratio(self) -> float:
        """Display width over height."""
        return self.width / self.height
