"""A second look at a written MP4: read it back and compare with what was meant (8.9)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from h3serve.core.errors import OutputError

MAX_DRIFT_S = 0.25  # between the ends of sound and picture


def check_drift(sound_seconds: float, picture_seconds: float) -> None:
    """Raise OutputError if sound and picture do not end together."""
    drift = abs(sound_seconds - picture_seconds)
    if drift > MAX_DRIFT_S:
        raise OutputError(f"sound and picture differ by {drift:.3f} s, at most {MAX_DRIFT_S} s is right")


def verify_mp4(path: Path, *, width: int, height: int, num_frames: int) -> None:
    """Raise OutputError naming every difference from one H.264 and one AAC stream of that size.

    Frames are counted packet by packet, so a truncated file cannot pass on its header's word.
    """
    try:
        with av.open(str(path)) as box:
            found = _describe(box)
    except (av.FFmpegError, ValueError) as error:
        raise OutputError(f"the MP4 cannot be read back: {error}") from error
    wanted = {
        "container": "mov,mp4,m4a,3gp,3g2,mj2",
        "streams": ["video", "audio"],
        "video": ("h264", "yuv420p"),
        "size": (width, height),
        "fps": 24,
        "frames": num_frames,
        "seconds": Fraction(num_frames, 24),
        "audio": ("aac", 32_000, 2),
    }
    wrong = [
        f"{key} is {found.get(key)} instead of {value}" for key, value in wanted.items() if found.get(key) != value
    ]
    if wrong:
        raise OutputError(f"the MP4 is not what was meant: {'; '.join(wrong)}")
    check_drift(found["audio seconds"], found["seconds"])


def _describe(box: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"container": box.format.name}
    found["streams"] = [stream.type for stream in box.streams]
    for video in box.streams.video[:1]:
        context = video.codec_context
        found["video"] = (context.name, context.pix_fmt)
        found["size"], found["fps"] = (context.width, context.height), video.average_rate
        found["seconds"] = (video.duration or 0) * video.time_base
        found["frames"] = sum(1 for packet in box.demux(video) if packet.size)
    for audio in box.streams.audio[:1]:
        context = audio.codec_context
        found["audio"] = (context.name, context.sample_rate, context.layout.nb_channels)
        found["audio seconds"] = float((audio.duration or 0) * audio.time_base)
    return found
