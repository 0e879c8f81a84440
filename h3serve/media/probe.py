"""What a file is, before any full decode: kind, size as displayed, lengths, streams."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from typing import Any

from h3serve.core.geometry import Size
from h3serve.core.probe import MediaProbe
from h3serve.media.container import open_media, picture_stream, sound_stream, time_zero, whole_packets
from h3serve.media.display import seen_size
from h3serve.media.image import display_size, is_picture
from h3serve.media.sources import MediaFile
from h3serve.media.video import frames


def probe_media(file: MediaFile) -> MediaProbe:
    """Look at a picture, clip or sound: header, packet times and at most one decoded frame.

    Lengths are those of the packets that are really there, counted from `time_zero`; data, subtitle
    and cover streams are ignored. Raises MediaError for a file that cannot be used.
    """
    num_bytes = file.check_size()
    with file.path.open("rb") as stream:
        head = stream.read(32)
    if is_picture(head):
        width, height = display_size(file)
        return MediaProbe("image", width=width, height=height, num_bytes=num_bytes)
    return _probe_streams(file, num_bytes)


def _probe_streams(file: MediaFile, num_bytes: int) -> MediaProbe:
    with open_media(file) as box:
        picture, sound = picture_stream(box), sound_stream(box)
        if picture is None and sound is None:
            raise file.error("it has no picture and no sound that can be decoded")
        ends = _ends(box, [s for s in (picture, sound) if s])
        zero = time_zero(box)
        sound_seconds = float(ends[sound.index] - zero) if sound and sound.index in ends else 0.0
        has_sound = sound_seconds > 0
        if picture is None:
            if not has_sound:
                raise file.error("its sound is empty")
            return MediaProbe(
                "audio", seconds=sound_seconds, has_sound=True, sound_seconds=sound_seconds, num_bytes=num_bytes
            )
        if picture.index not in ends:
            raise file.error("it has no pictures")
        seconds, rate = float(ends[picture.index] - zero), picture.average_rate
        aspect = picture.sample_aspect_ratio
    width, height = _clip_size(file, aspect)
    return MediaProbe(
        "video",
        width=width,
        height=height,
        seconds=seconds,
        fps=float(rate) if rate else None,
        has_sound=has_sound,
        sound_seconds=sound_seconds,
        num_bytes=num_bytes,
    )


def _ends(box: Any, streams: list[Any]) -> dict[int, Fraction]:
    """Stream index -> time at which its last whole packet ends."""
    ends: dict[int, Fraction] = {}
    for packet in whole_packets(box, streams):
        stream, begin = packet.stream, packet.pts if packet.pts is not None else packet.dts
        if begin is None or packet.is_discard:
            continue
        end = (begin + (packet.duration or 0)) * packet.time_base
        if not packet.duration and stream.type == "video" and stream.average_rate:
            end += 1 / stream.average_rate
        ends[stream.index] = max(end, ends.get(stream.index, end))
    for stream in streams:
        # The header knows what to cut of the last packet (padding of audio codecs), but not what is missing.
        if stream.index in ends and stream.duration:
            declared = ((stream.start_time or 0) + stream.duration) * stream.time_base
            ends[stream.index] = min(ends[stream.index], declared)
    return ends


def _clip_size(file: MediaFile, pixel_aspect: Fraction | None) -> Size:
    """Display (width, height), from the first frame that decodes."""
    with closing(frames(file)) as decoded:
        frame = next(decoded, None)
        if frame is None:
            raise file.error("none of its pictures can be decoded")
        return seen_size(frame, pixel_aspect)
