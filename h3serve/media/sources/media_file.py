"""A medium at hand (a file on this machine, by the name a person knows it by) and the rules for getting one."""

from __future__ import annotations

import os
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
    max_packets: int = 1_000_000  # frames and packets of sound: two hours of video, looked through in seconds
    max_decoded_bytes: int = 32 * GIB  # of all frames of a clip that are decoded, kept or not


@dataclass(frozen=True)
class SourcePolicy:
    """Where media may come from. The defaults suit someone at their own machine; a service narrows `folders`."""

    folders: tuple[Path, ...] | None = None  # local files only inside these; None: anywhere; (): nowhere
    base: Path | None = None  # of relative paths; None: the working directory
    private_addresses: bool = False  # http(s) to loopback, private and link-local addresses
    connect_seconds: float = 10.0  # also the longest silence of a server
    total_seconds: float = 120.0
    max_redirects: int = 5
    temp_folder: Path | None = None  # None: the system's
    limits: IngestLimits = IngestLimits()


ANYWHERE = SourcePolicy()


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
        """Size in bytes; MediaError if it cannot be read (see `check_readable`) or is over the limit."""
        size = self.check_readable()
        if size > self.limits.max_file_bytes:
            raise self.error(f"it has {size} bytes, at most {self.limits.max_file_bytes} are taken")
        return size

    def check_readable(self) -> int:
        """Size in bytes; MediaError if it is missing, not a regular file, not ours to read or empty."""
        if not self.path.is_file():
            raise self.error("there is no such file")
        if not os.access(self.path, os.R_OK):
            raise self.error("the file may not be read")
        size = self.path.stat().st_size
        if size == 0:
            raise self.error("the file is empty")
        return size
