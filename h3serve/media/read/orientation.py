"""How a decoded frame is meant to be seen: rotation, mirror, pixel aspect, and fields as whole frames.

A display matrix [a b; c d] (first two columns of the container's 3x3) sends stored (x, y) to
(a·x + c·y, b·x + d·y). Phones write multiples of 90° and mirrors; anything else counts as the nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.filter import Graph

from h3serve.core.geometry import Size

Filters = tuple[tuple[str, str], ...]  # (name, arguments) of FFmpeg filters


def upright_filters(frame: Any) -> Filters:
    """The filters that turn the stored picture into the one to be seen; empty for most clips."""
    a, b, c, d = _matrix(frame)
    turned = abs(b) + abs(c) > abs(a) + abs(d)
    filters: Filters = (("transpose", "dir=cclock_flip"),) if turned else ()  # rows become columns, no mirror
    across, down = (c, b) if turned else (a, d)
    if across < 0:
        filters += (("hflip", ""),)
    if down < 0:
        filters += (("vflip", ""),)
    return filters


def seen_size(frame: Any, pixel_aspect: Fraction | None) -> Size:
    """(width, height) as a player shows it: pixel aspect first (on the width), then rotation."""
    width = round(frame.width * (pixel_aspect or 1))
    turned = any(name == "transpose" for name, _ in upright_filters(frame))
    return (frame.height, width) if turned else (width, frame.height)


def progressive(decoded: Iterator[Any]) -> Iterator[Any]:
    """The frames with those that hold two fields deinterlaced (bwdif), each at the time of its first field.

    Frames that say they are progressive pass as they are. All must be of one size and format.
    """
    graph = None
    for frame in decoded:
        if graph is None and not frame.interlaced_frame:
            yield frame
            continue
        graph = graph or _deinterlacer(frame)
        graph.vpush(frame)
        yield from _deinterlaced(graph)
    if graph is not None:
        graph.vpush(None)
        yield from _deinterlaced(graph)


def source(graph: Graph, frame: Any) -> Any:
    """The filter graph's entrance for frames like `frame`."""
    return graph.add(
        "buffer",
        video_size=f"{frame.width}x{frame.height}",
        pix_fmt=frame.format.name,
        time_base=str(frame.time_base),
        colorspace=str(int(frame.colorspace)),
        range=str(int(frame.color_range)),
    )


def pulled(graph: Graph) -> Iterator[Any]:
    """What the graph has ready."""
    while True:
        try:
            yield graph.vpull()
        except (av.BlockingIOError, av.EOFError):
            return


def _deinterlacer(frame: Any) -> Graph:
    graph = Graph()
    chain = [("bwdif", "mode=send_frame:deint=interlaced"), ("format", f"pix_fmts={frame.format.name}")]
    graph.link_nodes(source(graph, frame), *(graph.add(*filter_) for filter_ in chain), graph.add("buffersink"))
    graph.configure()
    return graph


def _deinterlaced(graph: Graph) -> Iterator[Any]:
    for frame in pulled(graph):
        # bwdif counts in half ticks
        frame.pts, frame.duration, frame.time_base = frame.pts // 2, frame.duration // 2, frame.time_base * 2
        yield frame


def _matrix(frame: Any) -> tuple[int, int, int, int]:
    for data in frame.side_data:
        if data.type.name == "DISPLAYMATRIX":
            a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
            return a, b, c, d
    return 1, 0, 0, 1
