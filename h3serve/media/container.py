"""Films and sounds opened safely: self-contained formats only, the right streams, one time zero.

Lists of other files (HLS, DASH, concat) are not opened: they could make us read any file or address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import av
from av.stream import Disposition

from h3serve.media.sources import MediaFile

# FFmpeg's names of its readers.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,asf,wav,w64,mp3,flac,ogg,aac,aiff"
ALLOWED = "a clip or sound must be MP4, MOV, MKV, WEBM, AVI, TS, WMV, WAV, MP3, FLAC, OGG, AAC or AIFF"
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}


@contextmanager
def open_media(file: MediaFile) -> Iterator[Any]:
    """An av container for reading. Unknown or damaged content is a MediaError, in the block too."""
    file.check_size()
    try:
        with av.open(f"file:{file.path.absolute()}", options=OPTIONS, metadata_errors="replace") as box:
            yield box
    except av.FFmpegError as error:
        raise file.error(f"it cannot be read ({error.strerror}); {ALLOWED}") from error


def picture_stream(box: Any) -> Any | None:
    """The film: the default video stream, or the first. Cover art is not a film. None if there is none."""
    return _best([s for s in box.streams.video if not s.disposition & Disposition.attached_pic])


def sound_stream(box: Any) -> Any | None:
    """The default sound stream, or the first; None if there is none."""
    return _best(list(box.streams.audio))


def time_zero(box: Any) -> Fraction:
    """Stream time, in seconds, that counts as 0: where the earlier of picture and sound begins.

    A picture that starts later than its sound thereby stays late. Sound before 0 is the encoder's
    run-in, not sound.
    """
    picture, sound = picture_stream(box), sound_stream(box)
    starts = [_start(picture)] if picture else []
    starts += [max(_start(sound), Fraction(0))] if sound else []
    return min(starts, default=Fraction(0))


def whole_packets(box: Any, streams: list[Any]) -> Iterator[Any]:
    """The packets of `streams` up to the end of the file or the first place where it is broken or cut."""
    packets = box.demux(streams)
    while True:
        try:
            packet = next(packets, None)
        except av.FFmpegError:
            return
        if packet is None or packet.is_corrupt:
            return
        if packet.size:
            yield packet


def _start(stream: Any) -> Fraction:
    return Fraction((stream.start_time or 0) * stream.time_base)


def _best(streams: list[Any]) -> Any | None:
    streams = [s for s in streams if s.codec_context is not None]  # None: no decoder for it here
    return next((s for s in streams if s.disposition & Disposition.default), streams[0] if streams else None)
