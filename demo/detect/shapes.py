"""Which shape a thing's cover has, and its radius: the area gives each shape's radius, the best overlap the shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from demo.detect.tracks import FAINT, Floats, Track
from demo.world.draw import CORNER, HOLE, REACH
from demo.world.names import SHAPES, SIZES

# Area of radius 1.
AREAS = {
    "ball": np.pi,
    "ring": np.pi * (1 - HOLE**2),
    "box": 4 * CORNER**2,
    "triangle": 3**1.5 / 4 * REACH**2,
}
LOOKED_AT = 8  # frames
BLURS = (0.0, 0.7, 1.2)  # pixels: a decoder draws soft
STRETCHES = (0.94, 1.0, 1.06)  # of the radius that the area gives


def shape_of(track: Track) -> str:
    """The shape that differs least from the cover, softened as it fits best, over frames spread over the clip."""
    frames = np.flatnonzero(track.seen)
    errors = dict.fromkeys(SHAPES, 0.0)
    for frame in frames[np.linspace(0, len(frames) - 1, LOOKED_AT).astype(int)]:
        for shape in SHAPES:
            errors[shape] += _misfit(track, int(frame), shape)
    return min(errors, key=lambda shape: errors[shape])


def _misfit(track: Track, frame: int, shape: str) -> float:
    """Squared difference of the cover and the best drawing of a shape of its area, per covered pixel."""
    height, width = track.cover.shape[1:]
    x, y = track.x[frame] * width, track.y[frame] * height
    radius = np.sqrt(track.area[frame] / AREAS[shape]) * min(height, width)
    reach = int(1.6 * radius) + 3
    rows = np.arange(max(0, int(y) - reach), min(height, int(y) + reach))
    columns = np.arange(max(0, int(x) - reach), min(width, int(x) + reach))
    cover = track.cover[frame][rows][:, columns]
    across, down = columns + 0.5 - x, (rows + 0.5 - y)[:, None]
    drawings = (
        ndimage.gaussian_filter(np.clip(0.5 - _distance(shape, across, down, radius * stretch), 0, 1), blur)
        for stretch in STRETCHES
        for blur in BLURS
    )
    covered = max(1.0, float(cover.sum()))  # between blobs of noise there is nothing
    return min(float(np.square(cover - np.where(d > FAINT, d, 0)).sum()) for d in drawings) / covered


def radii(track: Track, shape: str) -> Floats:
    """Radius in short edges per frame, nan where unseen."""
    return np.sqrt(track.area / AREAS[shape])


def size_of(radius: float) -> str:
    """The size whose radius is closest in ratio."""
    return min(SIZES, key=lambda size: abs(np.log(radius / SIZES[size])))


def _distance(shape: str, x: Floats, y: Floats, radius: float) -> NDArray[np.float64]:
    """Signed distance in pixels, negative inside."""
    p = np.hypot(x, y)
    if shape == "ball":
        return p - radius
    if shape == "ring":
        return np.maximum(p - radius, HOLE * radius - p)
    if shape == "box":
        return np.maximum(np.abs(x), np.abs(y)) - CORNER * radius
    return np.maximum(3**0.5 / 2 * np.abs(x) - y / 2, y + 0 * x) - REACH / 2 * radius
