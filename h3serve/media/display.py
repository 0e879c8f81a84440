"""How a decoded frame is meant to be seen: rotation, mirror and pixel aspect.

A display matrix [a b; c d] (first two columns of the container's 3x3) sends stored (x, y) to
(a·x + c·y, b·x + d·y). Phones write multiples of 90° and mirrors; anything else counts as the nearest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

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


def _matrix(frame: Any) -> tuple[int, int, int, int]:
    for data in frame.side_data:
        if data.type.name == "DISPLAYMATRIX":
            a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
            return a, b, c, d
    return 1, 0, 0, 1
