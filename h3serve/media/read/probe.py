"""What a file is, before any full decode: kind, size as displayed, lengths, streams."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

from h3serve.core.media_probe import MediaProbe
from h3serve.media.read.animation import MAX_FRAMES, is_moving_webp, webp_seconds
from h3serve.media.read.audio import check_audio
from h3serve.media.read.container import LOOK_SECONDS, audio_stream, open_media, video_stream, whole_packets
from h3serve.media.read.frame_clock import counted_end, find_opening, is_counted
from h3serve.media.read.image import display_size, is_animation, is_image
from h3serve.media.read.orientation import seen_size
from h3serve.media.sources.media_file import MediaFile

_PADDING_S = 1  # codecs' frames are shorter


def probe_media(file: MediaFile) -> MediaProbe:
    """Look at a picture, video or sound: header, packet times and at most one decoded frame of each stream.

    Lengths are those of the packets that are really there, counted from the opening; data, subtitle
    and cover streams are ignored. Raises MediaError for a file that cannot be used.
    """
    num_bytes = file.check_size()
    with file.path.open("rb") as stream:
        head = stream.read(32)
    if is_image(head):
        if not is_animation(file):
            width, height = display_size(file)
            return MediaProbe("image", width=width, height=height, num_bytes=num_bytes)
        if is_moving_webp(file):
            return _probe_webp(file, num_bytes)
    return _probe_streams(file, num_bytes)


def _probe_webp(file: MediaFile, num_bytes: int) -> MediaProbe:
    seconds = float(webp_seconds(file))
    width, height = seen_size(find_opening(file).frame, None)
    return MediaProbe("video", width=width, height=height, seconds=seconds, num_bytes=num_bytes)


def _probe_streams(file: MediaFile, num_bytes: int) -> MediaProbe:
    with open_media(file) as box:
        picture, sound = video_stream(box), audio_stream(box)
        if picture is None and sound is None:
            raise file.error("it has no picture and no sound that can be decoded")
        ends = _ends(file, box, [s for s in (picture, sound) if s])
        if picture is not None and picture.index not in ends:
            raise file.error("it has no pictures")
        opening = find_opening(file)
        audio_seconds = float(ends[sound.index] - opening.zero) if sound and sound.index in ends else 0.0
        has_audio = audio_seconds > 0
        if has_audio:
            check_audio(file)
        if picture is None:
            if not has_audio:
                raise file.error("its sound is empty")
            return MediaProbe(
                "audio", seconds=audio_seconds, has_audio=True, audio_seconds=audio_seconds, num_bytes=num_bytes
            )
        seconds, rate = float(ends[picture.index] - opening.zero), picture.average_rate
        width, height = seen_size(opening.frame, picture.sample_aspect_ratio)
    return MediaProbe(
        "video",
        width=width,
        height=height,
        seconds=seconds,
        fps=float(rate) if rate else None,
        has_audio=has_audio,
        audio_seconds=max(0.0, audio_seconds),
        num_bytes=num_bytes,
        skipped_seconds=float(opening.skipped),
    )


def _ends(file: MediaFile, box: Any, streams: list[Any]) -> dict[int, Fraction]:
    """Stream index -> time at which its last whole packet ends."""
    ends: dict[int, Fraction] = {}
    deadline, counted = time.monotonic() + LOOK_SECONDS, is_counted(box)
    animation = box.format.name in ("gif", "apng")
    most = MAX_FRAMES if animation else file.limits.max_packets
    for number, packet in enumerate(whole_packets(box, streams)):
        if number >= most:
            raise file.error(f"it has more than {most} frames or packets of sound; cut out the part that is meant")
        if time.monotonic() > deadline:
            raise file.error(f"it takes longer than {LOOK_SECONDS:g} s to look through; cut out the part that is meant")
        stream = packet.stream
        video = stream.type == "video"
        begin = packet.dts if packet.pts is None or (counted and video) else packet.pts
        if begin is None or packet.is_discard:
            continue
        end = (begin + (packet.duration or 0)) * packet.time_base
        if not packet.duration and video and stream.average_rate:
            end += 1 / stream.average_rate
        ends[stream.index] = max(end, ends.get(stream.index, end))
    for stream in streams:
        if stream.index not in ends or not stream.duration or animation:
            continue
        if counted and stream.type == "video":
            last = int(ends[stream.index] / stream.time_base)
            ends[stream.index] = counted_end(file, stream, last) * stream.time_base
            continue
        # The header knows what to cut of the last packet (padding of audio codecs), but not what is missing.
        declared = ((stream.start_time or 0) + stream.duration) * stream.time_base
        if box.format.name.startswith("mov") and ends[stream.index] - declared > _PADDING_S:
            found, header = float(ends[stream.index]), float(declared)
            raise file.error(f"it contradicts itself: {found:.1f} s by its {stream.type}, {header:.1f} s by its header")
        ends[stream.index] = min(ends[stream.index], declared)
    return ends
