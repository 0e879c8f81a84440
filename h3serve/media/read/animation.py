"""Moving WEBP as a video. FFmpeg reads GIF and animated PNG; a WEBP that moves it does not, but Pillow does."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from typing import IO, Any

import av
import numpy as np

from h3serve.media.read.image import open_image
from h3serve.media.sources.media_file import MediaFile

MAX_FRAMES = 10_000  # of an animation: more than three minutes at 50 fps
_TOO_SHORT_MS, _SHOWN_MS = 20, 100  # what browsers, and FFmpeg for GIF, make of frames that claim to last no time


def is_moving_webp(file: MediaFile) -> bool:
    """True for a WEBP of at least two frames, from the headers of its chunks."""
    with file.path.open("rb") as stream:
        return len(_durations(stream, 2)) > 1


def webp_seconds(file: MediaFile) -> Fraction:
    """Length of a moving WEBP; MediaError if it has more than MAX_FRAMES frames."""
    with file.path.open("rb") as stream:
        durations = _durations(stream, MAX_FRAMES + 1)
    if len(durations) > MAX_FRAMES:
        raise file.error(f"it has more than {MAX_FRAMES} frames")
    return Fraction(sum(map(_shown, durations)), 1000)


def webp_frames(file: MediaFile, ticks: int) -> Generator[Any, None, None]:
    """Frames of a moving WEBP as av.VideoFrames, `pts` and `duration` in units of 1/`ticks` s."""
    with open_image(file, moving=True) as image:
        pts = 0
        for index in range(image.n_frames):  # type: ignore[attr-defined]
            image.seek(index)
            frame = av.VideoFrame.from_ndarray(np.asarray(image.convert("RGBA")), format="rgba")
            length = _shown(image.info["duration"]) * ticks // 1000
            frame.pts, frame.duration, frame.time_base = pts, length, Fraction(1, ticks)
            pts += length
            yield frame


def _durations(stream: IO[bytes], most: int) -> list[int]:
    """Milliseconds of up to `most` frames; empty for what is no WEBP."""
    head = stream.read(12)
    found: list[int] = []
    while head[:4] == b"RIFF" and head[8:] == b"WEBP" and len(found) < most:
        chunk = stream.read(8)
        if len(chunk) < 8:
            break
        size = int.from_bytes(chunk[4:], "little")
        if chunk[:4] == b"ANMF":
            found.append(int.from_bytes(stream.read(16)[12:15], "little"))
            size -= 16
        stream.seek(max(0, size + size % 2), 1)
    return found


def _shown(milliseconds: int) -> int:
    return milliseconds if milliseconds >= _TOO_SHORT_MS else _SHOWN_MS
