"""Reference clips: any film to RGB frames at 24 fps on a given canvas (tasks_and_validation 8.6).

One pass: decode → fps=24 → upright → Lanczos to the canvas → RGB, straight into the caller's array, which
may be shared memory. Frames are placed by their timestamps, so rates may vary and starts may be late.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from h3serve.core.geometry import FPS, Size
from h3serve.media.container import open_media, picture_stream, time_zero, whole_packets
from h3serve.media.display import upright_filters
from h3serve.media.sources import MediaFile

Frames = npt.NDArray[np.uint8]

# A tick in which every frame of 24, 25, 30, 48, 50, 60, 120 fps and their 1000/1001 cousins is whole.
TICKS = 705_600_000
_SEEK_MARGIN_S = 2  # a film's reordered frames lie around its key frames; start looking this much earlier


def decode_clip(file: MediaFile, canvas: Size, num_frames: int, *, start_seconds: float = 0.0) -> Frames:
    """`num_frames` frames at 24 fps from `start_seconds` on, uint8 [F, h, w, 3], canvas (w, h); see `decode_into`."""
    out = np.empty((num_frames, canvas[1], canvas[0], 3), np.uint8)
    decode_into(out, file, start_seconds=start_seconds)
    return out


def decode_into(out: Frames, file: MediaFile, *, start_seconds: float = 0.0) -> None:
    """Fill `out`, uint8 [F, h, w, 3], with the clip at 24 fps from `start_seconds` on, scaled to w x h.

    Frame k shows what is on screen at start + k/24 s (nearest timestamp). Decoding ends with the last
    frame needed, so damage after it does not matter. Raises MediaError if the clip is damaged before
    that, ends more than one frame early, or passes a limit of `file.limits`.
    """
    filled = 0
    with closing(_on_grid(file, start_seconds, (out.shape[2], out.shape[1]))) as pictures:
        for picture in pictures:
            out[filled] = picture
            filled += 1
            if filled == len(out):
                return
    if not filled or filled < len(out) - 1:
        raise file.error(f"it ends or is damaged after {filled} of the {len(out)} frames needed (at {FPS} fps)")
    out[filled] = out[filled - 1]  # container lengths are rounded: the last frame stays a little longer


def _on_grid(file: MediaFile, start_seconds: float, canvas: Size) -> Generator[Frames, None, None]:
    with closing(frames(file, start_seconds)) as decoded:
        graph, shape = None, None
        for frame in decoded:
            if graph is None:
                graph, shape = _graph(frame, canvas), _shape(frame)
            elif _shape(frame) != shape:
                raise file.error(f"its picture changes size or format at {frame.pts / TICKS + start_seconds:.2f} s")
            graph.vpush(frame)
            yield from _pull(graph)
        if graph is not None:
            graph.vpush(None)
            yield from _pull(graph)


def _graph(frame: Any, canvas: Size) -> Graph:
    """The filter chain for frames like `frame`, from TICKS timestamps to RGB on the canvas."""
    chain = [
        ("fps", f"fps={FPS}:start_time=0"),
        *upright_filters(frame),
        ("scale", f"w={canvas[0]}:h={canvas[1]}:flags=lanczos"),
        ("setsar", "sar=1"),
        ("format", "pix_fmts=rgb24"),
        ("buffersink", ""),
    ]
    graph = Graph()
    source = graph.add(
        "buffer",
        video_size=f"{frame.width}x{frame.height}",
        pix_fmt=frame.format.name,
        time_base=f"1/{TICKS}",
        colorspace=str(int(frame.colorspace)),
        range=str(int(frame.color_range)),
    )
    graph.link_nodes(source, *(graph.add(name, arguments or None) for name, arguments in chain))
    graph.configure()
    return graph


def _shape(frame: Any) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


def _pull(graph: Graph) -> Iterator[Frames]:
    while True:
        try:
            frame = graph.vpull()
        except (av.BlockingIOError, av.EOFError):
            return
        plane = frame.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(frame.height, plane.line_size)
        yield rows[:, : frame.width * 3].reshape(frame.height, frame.width, 3)


def frames(file: MediaFile, start_seconds: float = 0.0) -> Generator[Any, None, None]:
    """Decoded frames with `pts` and `duration` in TICKS, 0 being `start_seconds`; earlier ones are included.

    At least the frame on screen at the start is among them.
    """
    start = Fraction(start_seconds)
    if start > _SEEK_MARGIN_S:
        with closing(_decode(file, start, seek=True)) as decoded:
            first = next(decoded, None)
            if first is not None and first.pts <= 0:
                yield first
                yield from decoded
                return
    yield from _decode(file, start, seek=False)


def _decode(file: MediaFile, start: Fraction, *, seek: bool) -> Generator[Any, None, None]:
    with open_media(file) as box:
        stream = picture_stream(box)
        if stream is None:
            raise file.error("it has no pictures")
        _check_pixels(file, stream.codec_context)
        stream.thread_type = "AUTO"
        offset = time_zero(box) + start
        settled = None
        if seek:
            box.seek(int((offset - _SEEK_MARGIN_S) / stream.time_base), stream=stream)
            settled = offset - Fraction(_SEEK_MARGIN_S, 2)
        timed = box.format.name != "avi"  # its frames have a place in line, not a time
        decoded_bytes, clock = 0, -start
        for frame in _whole_frames(box, stream, settled):
            decoded_bytes += sum(plane.buffer_size for plane in frame.planes)
            if decoded_bytes > file.limits.max_decoded_bytes:
                raise file.error(f"it unpacks to more than {file.limits.max_decoded_bytes} bytes")
            if timed and frame.pts is not None:
                clock = frame.pts * stream.time_base - offset
            clock += _restamp(frame, stream, clock)
            yield frame


def _whole_frames(box: Any, stream: Any, settled: Fraction | None) -> Iterator[Any]:
    """Frames up to the first damage that the decoder knows of: a smeared picture is worse than a refusal.

    What fails before any frame came out belongs to an earlier cut of the film; after a seek, what fails
    before the stream time `settled` leans on frames before the key frame. Neither is damage.
    """
    started = False
    for packet in whole_packets(box, [stream]):
        try:
            pictures = packet.decode()
        except av.FFmpegError:
            if started:
                return
            continue
        for frame in pictures:
            if frame.is_corrupt and started:
                return
            started = started or settled is None or frame.pts is None or frame.pts * stream.time_base >= settled
            if not frame.is_corrupt:
                yield frame
    yield from stream.codec_context.decode(None)


def _restamp(frame: Any, stream: Any, begin: Fraction) -> Fraction:
    """Give the frame its times in TICKS; returns how long it is shown."""
    length = (frame.duration or 0) * stream.time_base or 1 / (stream.average_rate or Fraction(FPS))
    frame.time_base = Fraction(1, TICKS)
    frame.pts, frame.duration = round(begin * TICKS), round(length * TICKS)
    return Fraction(length)


def _check_pixels(file: MediaFile, context: Any) -> None:
    if context.width * context.height > file.limits.max_frame_pixels:
        limit = file.limits.max_frame_pixels
        raise file.error(f"it has {context.width}x{context.height} pixels, at most {limit} are taken")
