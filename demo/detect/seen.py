"""Everything that is seen in a clip, from its pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demo.detect.crossings import filled
from demo.detect.moves import Move, classify
from demo.detect.shapes import radii, shape_of, size_of
from demo.detect.tracks import Pixels, background_name, find_tracks


@dataclass(frozen=True)
class Seen:
    """Things left to right; sizes are those at the end; `count` is the number of things in most frames.

    `start` is where (x, y) the first one is when it is first seen.
    """

    background: str
    count: int
    colours: tuple[str, ...]
    shapes: tuple[str, ...]
    sizes: tuple[str, ...]
    move: Move
    start: tuple[float, float] = (0.5, 0.5)


def see(video: Pixels) -> Seen:
    """What uint8 [F,H,W,3] at 24 fps shows; an empty clip has no things and stands still."""
    (tracks, count), ground = find_tracks(video), background_name(video)
    if not tracks:
        return Seen(ground, 0, (), (), (), Move("still"))
    shapes = [shape_of(track) for track in tracks]
    sizes = [radii(track, shape) for track, shape in zip(tracks, shapes, strict=True)]
    last = [float(np.median(size[np.isfinite(size)][-9:])) for size in sizes]
    return Seen(
        background=ground,
        count=count,
        colours=tuple(track.colour for track in tracks),
        shapes=tuple(shapes),
        sizes=tuple(size_of(radius) for radius in last),
        move=classify(tracks, sizes[0]),
        start=(float(filled(tracks[0].x)[0]), float(filled(tracks[0].y)[0])),
    )
