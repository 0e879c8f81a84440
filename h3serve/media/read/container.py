"""Videos and sounds opened safely: self-contained formats only, the right streams, packets while they are whole.

Lists of other files (HLS, DASH, concat) are not opened: they could make us read any file or address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av
from av.stream import Disposition

from h3serve.media.read import image
from h3serve.media.sources.media_file import MediaFile

# FFmpeg's names of its readers: containers with times of their own, or formats whose times follow from their samples.
FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,asf,flv,gif,apng,"
    "wav,w64,mp3,flac,ogg,aac,aiff,caf,au,amr,ac3,eac3,ape,wv,tta"
)
VIDEOS = "MP4, MOV, MKV, WEBM, AVI, TS, MPEG, WMV, FLV, or a moving GIF, WEBP or PNG"
SOUNDS = "WAV, MP3, M4A, FLAC, OGG, AAC, AIFF, CAF, AU, AMR, AC-3, APE, WavPack or TTA"
ALLOWED = f"{image.ALLOWED}; a video {VIDEOS}; a sound {SOUNDS}"
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
LOOK_SECONDS = 20.0  # the longest that a file may keep us busy before its first frame, or with its packets


@contextmanager
def open_media(file: MediaFile) -> Iterator[Any]:
    """An av container for reading. Unknown or damaged content is a MediaError, in the block too."""
    file.check_size()
    path = f"file:{file.path.absolute()}"
    try:
        box = av.open(path, options=OPTIONS, metadata_errors="replace", timeout=LOOK_SECONDS)
    except av.FFmpegError as error:
        raise file.error(f"it cannot be read ({error.strerror}); {ALLOWED}") from error
    try:
        with box:
            yield box
    except av.FFmpegError as error:
        raise file.error(f"it cannot be read on ({error.strerror})") from error


def video_stream(box: Any) -> Any | None:
    """The video: of the default streams (or of all) the one with most pixels. Cover art is none."""
    streams = _default([s for s in box.streams.video if not s.disposition & Disposition.attached_pic])
    return max(streams, key=lambda s: s.codec_context.width * s.codec_context.height, default=None)


def audio_stream(box: Any) -> Any | None:
    """The default sound stream, or the first; None if there is none."""
    return next(iter(_default(list(box.streams.audio))), None)


def whole_packets(box: Any, streams: list[Any]) -> Iterator[Any]:
    """The packets of `streams` up to the end of the file or the first place where it is broken or cut."""
    packets = box.demux(streams)
    while True:
        try:
            packet = next(packets, None)
        except IndexError:  # PyAV has no place for a stream that only appears on the way; the others go on
            packets = box.demux(streams)
            continue
        except av.FFmpegError:
            return
        if packet is None or packet.is_corrupt:
            return
        if packet.size:
            yield packet


def _default(streams: list[Any]) -> list[Any]:
    """Those of `streams` that are the default ones, or all where none is; none without a decoder here."""
    streams = [s for s in streams if s.codec_context is not None]
    return [s for s in streams if s.disposition & Disposition.default] or streams
