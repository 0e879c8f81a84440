"""A medium at hand: a file on this machine, what the person called it, and how much of it we will take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from h3serve.core.errors import MediaError

GIB = 1 << 30


@dataclass(frozen=True)
class IngestLimits:
    """Bounds that keep a hostile or mistaken file from filling memory, disk or hours."""

    max_file_bytes: int = 1 * GIB
    max_picture_pixels: int = 80_000_000
    max_frame_pixels: int = 8192 * 4320  # of a clip
    max_decoded_bytes: int = 32 * GIB  # of all frames of a clip that are decoded, kept or not


@dataclass(frozen=True)
class MediaFile:
    """`path` is what is read; `field` and `name` are what a person is told: never a temporary path."""

    path: Path
    field: str = "media"
    name: str = ""
    limits: IngestLimits = IngestLimits()

    def error(self, reason: str) -> MediaError:
        """The MediaError to raise when this file cannot be used."""
        return MediaError(self.field, self.name or self.path.name, reason)

    def check_size(self) -> int:
        """Size in bytes; MediaError if it is missing, not a regular file, empty or over the limit."""
        if not self.path.is_file():
            raise self.error("there is no such file")
        size = self.path.stat().st_size
        if size == 0:
            raise self.error("the file is empty")
        if size > self.limits.max_file_bytes:
            raise self.error(f"it has {size} bytes, at most {self.limits.max_file_bytes} are taken")
        return size
