"""Whether a request's work fits beside an engine's weights: arithmetic, also for a server that loads nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from h3serve.core.errors import CapacityError
from h3serve.core.estimate_work import GIB, modulation_bytes, step_bytes, text_bytes
from h3serve.core.geometry import LATENT_CHANNELS, PIXELS_PER_LATENT, Size, tiles_along
from h3serve.core.plan import Plan
from h3serve.core.segments import Segment

SLOTS = 100  # of a modulation slab to begin with: the default schedule has 99 timesteps
WINDOW_FRAMES = 28  # raw frames of one window of the video VAE, float32
WINDOW_COPIES = 6  # of a whole window, while its tiles are faded into each other: 5.4 to 5.8 seen
TILE, OVERLAP = 256, 64  # pixels along each side of the video VAE's tiles
CHUNK_FRAMES = 17  # of a video that are encoded at once; an image is one frame, and 17 times as many tiles go through
PIXEL_BYTES = 3 * 4  # normalized
MOMENTS = 2 * LATENT_CHANNELS  # float32 values of a latent: mean and variance
SLAB_BYTES = 4 * GIB  # the most that the modulation of one request may take on the device


@dataclass(frozen=True)
class Work:
    """Device bytes that a request needs beside the weights: all the time (`slab`), and during each stage."""

    slab: int
    stages: Mapping[str, int]


class Tiles(NamedTuple):
    """Bytes of a tile of the video VAE: encoded, of 17 frames or of one, and decoded; and how many go at once."""

    encode_bytes: int
    image_bytes: int
    decode_bytes: int
    encode_batch: int = 1
    decode_batch: int = 1


@dataclass(frozen=True)
class Capacity:
    """Device bytes of an engine: weights there during each stage, what is usable in all, and what was free before."""

    held: Mapping[str, int]
    usable: int
    free: int
    tiles: Tiles

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiles", Tiles(*self.tiles))  # as JSON they were a list

    def check(self, plan: Plan, *, adapters: int = 0) -> None:
        """CapacityError, with the numbers, if `plan` does not fit beside so many bytes of adapters."""
        work = work_of(plan, tiles=self.tiles)
        if work.slab > SLAB_BYTES:
            raise CapacityError(
                f"the modulation of all steps is {gib(work.slab)}, at most {gib(SLAB_BYTES)}: take fewer steps"
            )
        for stage, held in self.held.items():
            peak = held + work.slab + work.stages[stage] + adapters
            if peak > self.usable:
                raise too_much(stage, peak, usable=self.usable, free=self.free)


def work_of(plan: Plan, *, tiles: Tiles) -> Work:
    """Returns what `plan` needs; a window's tiles are gone when they have been faded into each other."""
    model = plan.model
    decoding = min(tile_count(plan.canvas), tiles.decode_batch) * tiles.decode_bytes
    window = WINDOW_FRAMES * plan.canvas[0] * plan.canvas[1] * 3 * 4
    projection = model.adaln_params // model.layers * model.value_bytes
    return Work(
        slab=modulation_bytes(max(SLOTS, plan.timesteps), model),
        stages={
            "encode text": text_bytes(plan.text_tokens, model),
            "encode conditions": max((encoding_bytes(segment, tiles) for segment in plan.conditions), default=0),
            "denoise": max(step_bytes(plan.rows, model), 3 * projection),
            "decode": max(decoding + window, WINDOW_COPIES * window),
        },
    )


def encoding_bytes(condition: Segment, tiles: Tiles) -> int:
    """Device bytes of encoding: tiles in flight, the pixels that they are cut from, what has been encoded before.

    Audio needs less than one tile.
    """
    if condition.size is None:
        return tiles.encode_bytes
    area, there = prod(condition.size), tile_count(condition.size)
    moments = condition.latent_frames * (area // PIXELS_PER_LATENT**2) * MOMENTS * 4
    if condition.latent_frames == 1:
        frames, at_once, tile_bytes = 1, min(there, CHUNK_FRAMES * tiles.encode_batch), tiles.image_bytes
    else:
        frames, at_once, tile_bytes = CHUNK_FRAMES, min(there, tiles.encode_batch), tiles.encode_bytes
    pixels = frames * (area + at_once * TILE**2) * PIXEL_BYTES  # a chunk, and the tiles that are cut from it
    return at_once * tile_bytes + pixels + moments


def tile_count(size: Size) -> int:
    """How many tiles the video VAE cuts a frame into."""
    return prod(tiles_along(side, tile=TILE, overlap=OVERLAP) for side in size)


def too_much(stage: str, peak: int, *, usable: int, free: int, advice: str = "") -> CapacityError:
    """Returns the error that says what `stage` needs (`peak` bytes) and what there is."""
    return CapacityError(
        f"{stage} needs {gib(peak)} on the device, {gib(max(0, usable))} are usable "
        f"({gib(free)} free, less a margin){advice}; a shorter or smaller video needs less"
    )


def gib(num_bytes: int) -> str:
    """`num_bytes` in words: `12.34 GiB`."""
    return f"{num_bytes / GIB:.2f} GiB"
