"""Reference clips: any film to RGB frames at 24 fps on a given canvas (tasks_and_validation 8.6).

One pass: decode → fps=24 → upright → Lanczos to the canvas → RGB, straight into the caller's array, which
may be shared memory. Frames are placed by their timestamps, so rates may vary and starts may be late.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from h3serve.core.geometry import FPS, Size
from h3serve.media.display import upright_filters
from h3serve.media.frames import TICKS, frames
from h3serve.media.sources import MediaFile

Frames = npt.NDArray[np.uint8]


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
