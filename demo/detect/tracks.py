"""Pixels to tracks: the background, how many things there are, and each one's place and size in every frame.

A thing's cover is how far a pixel lies on the line from the background's colour to the thing's own; places and radii
are its moments, so they are finer than a pixel and do not mind noise or blur.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from demo.world.names import BACKGROUNDS, COLOURS, NEW_BACKGROUNDS, SIZES

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]

FAR = 45.0  # RGB distance from the background at which a pixel belongs to a thing
FAINT = 0.25  # cover below this is noise
SMALLEST_AREA = 0.8 * SIZES["small"] ** 2  # of a thing, in squared short edges: a third of a small ring


@dataclass(frozen=True)
class Track:
    """Over F frames: x, y in parts of the canvas, area in squared short edges (nan where unseen), cover [F,H,W]."""

    colour: str
    x: Floats
    y: Floats
    area: Floats
    cover: NDArray[np.float32]

    @property
    def seen(self) -> Masks:
        return np.isfinite(self.x)


def background(video: Pixels) -> NDArray[np.float32]:
    """The commonest colour, as the median of all pixels, float32 [3]."""
    return np.median(video[::6, ::2, ::2].reshape(-1, 3), axis=0).astype(np.float32)


def nearest(colour: Floats | NDArray[np.float32], names: dict[str, tuple[int, int, int]]) -> str:
    """The name whose RGB is closest."""
    return min(names, key=lambda name: float(np.linalg.norm(np.array(names[name]) - colour)))


def background_name(video: Pixels) -> str:
    return nearest(background(video), BACKGROUNDS | NEW_BACKGROUNDS)


def find_tracks(video: Pixels) -> tuple[list[Track], int]:
    """Things of a clip uint8 [F,H,W,3], left one first, and how many most frames show that show any.

    More than two are tracked as two: what is left of the middle, and what is right of it.
    """
    ground = background(video)
    away = video.astype(np.float32) - ground
    far = np.sqrt((away * away).sum(-1)) > FAR
    least = SMALLEST_AREA * min(video.shape[1:3]) ** 2
    masks, counts = np.zeros_like(far), []
    for number, frame in enumerate(far):
        blobs = list(_blobs(frame, least))
        counts.append(len(blobs))
        masks[number] = np.logical_or.reduce(blobs) if blobs else False
    shown = [count for count in counts if count]
    if not shown:
        return [], 0
    count = round(float(np.median(shown)))
    if count == 1:
        return [_track(away, ground, masks)], 1
    middle = np.arange(video.shape[2]) >= video.shape[2] / 2
    halves = (masks & half for half in (~middle, middle))
    return [_track(away, ground, half) for half in halves if half.any()], count


def _blobs(frame: Masks, least: float) -> Iterator[Masks]:
    labels, number = ndimage.label(frame)
    areas = np.bincount(labels.ravel(), minlength=number + 1)
    return (labels == blob for blob in range(1, number + 1) if areas[blob] >= least)


def _track(away: NDArray[np.float32], ground: NDArray[np.float32], mask: Masks) -> Track:
    colour = _colour(away, ground, mask)
    line = np.array(COLOURS[colour], np.float32) - ground
    around = ndimage.binary_dilation(mask, np.ones((1, 3, 3), bool), iterations=2)
    cover = np.clip(away @ line / float(line @ line), 0, 1)
    cover = np.where(around & (cover > FAINT), cover, 0).astype(np.float32)
    height, width = mask.shape[1:]
    total = cover.sum((1, 2), dtype=np.float64)
    seen = mask.any((1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        x = (cover.sum(1) @ (np.arange(width) + 0.5)) / total / width
        y = (cover.sum(2) @ (np.arange(height) + 0.5)) / total / height
    hidden: Any = np.where(seen, 0.0, np.nan)
    return Track(colour, x + hidden, y + hidden, total / min(height, width) ** 2 + hidden, cover)


def _colour(away: NDArray[np.float32], ground: NDArray[np.float32], mask: Masks) -> str:
    """Of the third of the pixels that lie furthest from the background: edges are mixtures."""
    pixels = away[mask]
    distance = np.linalg.norm(pixels, axis=1)
    core = pixels[distance >= np.quantile(distance, 0.67)]
    return nearest(np.median(core, axis=0) + ground, COLOURS)
