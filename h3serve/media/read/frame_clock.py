"""Decoded frames of a video, each with its time, and the instant that counts as 0.

A video that was cut between key frames begins with frames that lean on what was cut off. It begins for us with
the first frame that can be decoded, its sound at the same instant.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import av

from h3serve.core.geometry import FPS
from h3serve.media.read.animation import is_moving_webp, webp_frames
from h3serve.media.read.container import LOOK_SECONDS, audio_stream, open_media, video_stream, whole_packets
from h3serve.media.read.tone_mapping import check_colours
from h3serve.media.sources.media_file import MediaFile

# A tick in which every frame of 24, 25, 30, 48, 50, 60, 120 fps and their 1000/1001 cousins is whole.
TICKS = 705_600_000
# One thread. With several frames at once FFmpeg copies the mark of a damaged frame while another thread may be about
# to set it, and a smeared frame passes for whole in some runs; with several slices at once H.264 sets no mark at all
# (bench/damaged_videos.py).
THREADING = "NONE"
_SEEK_MARGIN_S = 2  # a video's reordered frames lie around its key frames; start looking this much earlier
_HEAD_PACKETS = 1000  # without one frame: more than any distance between key frames
_ROUNDED_S = Fraction(3, 1000)  # times of some containers are whole milliseconds
# Their decoders know themselves from where on a frame is whole; others paint on grey until a key frame comes.
_KNOW_THEIR_START = {"h264", "hevc"}


@dataclass(frozen=True)
class Opening:
    """Where a file begins: `zero` is the stream time that counts as 0, `skipped` the seconds before it that
    cannot be decoded, `frame` the first frame of its video (None without one)."""

    zero: Fraction
    skipped: Fraction = Fraction(0)
    frame: Any = None


def find_opening(file: MediaFile) -> Opening:
    """Decode up to the first frame; raises MediaError if there is a video and none of it can be decoded.

    0 is where the earlier of video and sound begins, so that a video that starts later than its sound stays
    late. Sound before 0 is the encoder's run-in, not sound.
    """
    if is_moving_webp(file):
        with closing(webp_frames(file, TICKS)) as animation:
            return Opening(Fraction(0), frame=next(animation))
    with open_media(file) as box:
        stream, sound = video_stream(box), audio_stream(box)
        heard = max(_start(sound), Fraction(0)) if sound else None
        if stream is None:
            return Opening(heard or Fraction(0))
        decoder = _Decoder(file, box, stream)
        begin, frame = next(iter(decoder), (None, None))
        if begin is None:
            raise file.error("none of its pictures can be decoded")
        check_colours(file, frame)
        missing = begin - decoder.earliest
        if missing > _ROUNDED_S:
            return Opening(begin, missing, frame)
        return Opening(begin if heard is None else min(begin, heard), frame=frame)


def frames(file: MediaFile, start_seconds: float = 0.0) -> Generator[Any, None, None]:
    """Decoded frames with `pts` and `duration` in TICKS, 0 being `start_seconds`; earlier ones are included.

    At least the frame on screen at the start is among them. They end at the first damage.
    """
    start = Fraction(start_seconds)
    if is_moving_webp(file):
        yield from _shifted(webp_frames(file, TICKS), start)
        return
    zero = find_opening(file).zero
    if start > _SEEK_MARGIN_S:
        with closing(_decode(file, zero + start, seek=True)) as decoded:
            first = next(decoded, None)
            if first is not None and first.pts <= 0:
                yield first
                yield from decoded
                return
    yield from _decode(file, zero + start, seek=False)


def is_counted(box: Any) -> bool:
    """True for AVI: its frames have a place in line, not a time."""
    return str(box.format.name) == "avi"


def counted_end(file: MediaFile, stream: Any, end: int) -> int:
    """Where an AVI's video ends that was last seen at `end`: the last frame may be repeated.

    The header knows, and is believed if nothing of the file is missing.
    """
    with file.path.open("rb") as raw:
        riff_bytes = int.from_bytes(raw.read(8)[4:], "little")
    size = file.path.stat().st_size
    fits = stream.duration is not None and stream.duration * 8 <= size  # every repeat takes a chunk of 8 bytes
    return max(end, stream.duration) if fits and 0 < riff_bytes <= size - 8 else end


def _decode(file: MediaFile, offset: Fraction, *, seek: bool) -> Generator[Any, None, None]:
    """Frames with times counted from the stream time `offset`; none if the container cannot seek exactly."""
    with open_media(file) as box:
        stream: Any = video_stream(box)
        settled = None
        if seek:
            if is_counted(box):
                return
            box.seek(int((offset - _SEEK_MARGIN_S) / stream.time_base), stream=stream)
            settled = offset - Fraction(_SEEK_MARGIN_S, 2)
        decoded_bytes = 0
        for begin, frame in _Decoder(file, box, stream, settled):
            decoded_bytes += sum(plane.buffer_size for plane in frame.planes)
            if decoded_bytes > file.limits.max_decoded_bytes:
                raise file.error(f"it unpacks to more than {file.limits.max_decoded_bytes} bytes")
            length = (frame.duration or 0) * stream.time_base or _usual_length(stream)
            frame.time_base = Fraction(1, TICKS)
            frame.pts, frame.duration = round((begin - offset) * TICKS), round(length * TICKS)
            yield frame


class _Decoder:
    """(stream time in seconds, frame) up to the first damage that the decoder knows of.

    A smeared frame is worse than a refusal. What fails before any frame came out belongs to an earlier cut of
    the video; after a seek, what fails before the stream time `settled` leans on frames before the key frame.
    Neither is damage. `earliest` is where the first frame belongs, decoded or not.
    """

    def __init__(self, file: MediaFile, box: Any, stream: Any, settled: Fraction | None = None) -> None:
        self.file, self.box, self.stream, self.settled = file, box, stream, settled
        self.earliest = _start(stream)
        self._check_pixels()
        stream.thread_type = THREADING
        # A frame may be larger than the header says.
        stream.codec_context.options = {"max_pixels": str(file.limits.max_frame_pixels)}

    def __iter__(self) -> Iterator[tuple[Fraction, Any]]:
        return self._counted() if is_counted(self.box) else self._timed()

    def _timed(self) -> Iterator[tuple[Fraction, Any]]:
        """Times are those that the container gave the frames."""
        clock = self.earliest
        for frame in self._whole_frames(self._packets()):
            if frame.pts is not None:
                clock = frame.pts * self.stream.time_base
            yield clock, frame
            clock += (frame.duration or 0) * self.stream.time_base or _usual_length(self.stream)

    def _counted(self) -> Iterator[tuple[Fraction, Any]]:
        """Frame after frame takes the next place for which there was a packet; the last stays to the end."""
        places: list[int] = []
        beat, last = self.stream.time_base, 0

        def noted() -> Iterator[Any]:
            nonlocal last
            for packet in self._packets():
                last = packet.dts if packet.dts is not None else last + 1
                heapq.heappush(places, last)
                yield packet

        held = None
        for frame in self._whole_frames(noted()):
            if held is not None:
                yield held
            place = heapq.heappop(places) if places else last + 1
            frame.duration = 1
            held = place * beat, frame
        if held is not None:
            place, frame = held
            if not places:  # the file is whole
                frame.duration = max(1, counted_end(self.file, self.stream, last + 1) - last)
            yield place, frame

    def _packets(self) -> Iterator[Any]:
        """What the decoder is fed: packets from the first key frame on, or all if it finds its start itself."""
        codec = self.stream.codec_context
        ready = codec.codec.intra_only or (codec.name in _KNOW_THEIR_START and not is_counted(self.box))
        first = None
        for packet in whole_packets(self.box, [self.stream]):
            if packet.pts is not None and not packet.is_discard and (first is None or packet.pts < first):
                first = packet.pts
                if self.settled is None:
                    self.earliest = min(first * self.stream.time_base, self.earliest)
            ready = ready or packet.is_keyframe
            if ready:
                yield packet

    def _whole_frames(self, packets: Iterator[Any]) -> Iterator[Any]:
        started, deadline = False, time.monotonic() + LOOK_SECONDS
        for fed, packet in enumerate(chain(packets, [None])):  # None: what the decoder still holds
            try:
                pictures = self.stream.codec_context.decode(packet)
            except av.FFmpegError:
                if started:
                    return
                pictures = []
            for frame in pictures:
                if frame.is_corrupt and started:
                    return
                late = self.settled is None or frame.pts is None or frame.pts * self.stream.time_base >= self.settled
                started = started or late
                if not frame.is_corrupt:
                    yield frame
            if not started and (fed >= _HEAD_PACKETS or time.monotonic() > deadline):
                raise self.file.error(f"no frame can be decoded from its first {fed} packets of video")

    def _check_pixels(self) -> None:
        context, limit = self.stream.codec_context, self.file.limits.max_frame_pixels
        if context.width * context.height > limit:
            raise self.file.error(f"it has {context.width}x{context.height} pixels, at most {limit} are taken")


def _shifted(decoded: Iterator[Any], start: Fraction) -> Generator[Any, None, None]:
    for frame in decoded:
        frame.pts -= round(start * TICKS)
        yield frame


def _usual_length(stream: Any) -> Fraction:
    return 1 / (stream.average_rate or Fraction(FPS))


def _start(stream: Any) -> Fraction:
    return Fraction((stream.start_time or 0) * stream.time_base)
