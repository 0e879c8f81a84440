"""Reference clips: any film to RGB frames at 24 fps on a given canvas (tasks_and_validation 8.6).

One pass: decode → deinterlace → fps=24 → upright → Lanczos to the canvas → SDR → RGB, straight into the
caller's array, which may be shared memory. Frames are placed by their timestamps, so rates may vary and starts
may be late.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
from av.filter import Graph

from h3serve.core.geometry import FPS, Size
from h3serve.media.read.frame_clock import TICKS, frames
from h3serve.media.read.orientation import progressive, pulled, source, upright_filters
from h3serve.media.read.tone_mapping import tone_filters
from h3serve.media.sources.media_file import MediaFile

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
        graph = None
        for frame in progressive(_one_shape(file, decoded, start_seconds)):
            graph = graph or _graph(frame, canvas)
            graph.vpush(frame)
            yield from _pixels(graph)
        if graph is not None:
            graph.vpush(None)
            yield from _pixels(graph)


def _one_shape(file: MediaFile, decoded: Iterator[Any], start_seconds: float) -> Iterator[Any]:
    shape = None
    for frame in decoded:
        shape = shape or _shape(frame)
        if _shape(frame) != shape:
            raise file.error(f"its picture changes size or format at {frame.pts / TICKS + start_seconds:.2f} s")
        yield frame


def _graph(frame: Any, canvas: Size) -> Graph:
    """The filter chain for frames like `frame`, from TICKS timestamps to RGB(A) on the canvas."""
    graph = Graph()
    entrance = source(graph, frame)
    fit = ("scale", f"w={canvas[0]}:h={canvas[1]}:flags=lanczos"), ("setsar", "sar=1")
    seen = ("fps", f"fps={FPS}:start_time=0"), *upright_filters(frame)
    has_alpha = any(component.is_alpha for component in frame.format.components)
    with tone_filters(frame, "gbrap16le" if has_alpha else "gbrp16le") as tone:
        if has_alpha:  # colours that are not seen must not bleed into those that are
            seen += *tone, ("format", "pix_fmts=gbrap"), ("premultiply", "inplace=1"), *fit, ("format", "pix_fmts=rgba")
        else:
            seen += *fit, *tone, ("format", "pix_fmts=rgb24")
        nodes = [graph.add(name, arguments or None) for name, arguments in (*seen, ("buffersink", ""))]
    graph.link_nodes(entrance, *nodes)
    graph.configure()
    return graph


def _shape(frame: Any) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


def _pixels(graph: Graph) -> Iterator[Frames]:
    """uint8 [h, w, 3]; what is transparent lies over white."""
    for frame in pulled(graph):
        plane, channels = frame.planes[0], len(frame.format.components)
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(frame.height, plane.line_size)
        pixels = rows[:, : frame.width * channels].reshape(frame.height, frame.width, channels)
        if channels == 4:
            white = 255 - pixels[..., 3:].astype(np.uint16)
            pixels = np.minimum(pixels[..., :3] + white, 255).astype(np.uint8)
        yield pixels
