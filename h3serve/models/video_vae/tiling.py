"""Overlapping tiles: where they start along an axis, and how their outputs become one image.

The released video VAE always works in tiles of 256 px; the blended tiles are the model, so doing
without them changes the result (spec/vae_video.md 5.4, 5.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from h3serve.core.geometry import tiles_along


@dataclass(frozen=True)
class Axis:
    """Tiles of one `size` along one axis; tile i shares `overlaps[i]` entries with tile i+1."""

    size: int
    starts: tuple[int, ...]
    overlaps: tuple[int, ...]

    def per(self, unit: int) -> Axis:
        """The same tiles counted in steps of `unit` entries (pixels to latents)."""
        starts, overlaps = (tuple(n // unit for n in ns) for ns in (self.starts, self.overlaps))
        return Axis(self.size // unit, starts, overlaps)


def split_axis(length: int, *, tile: int, overlap: int, unit: int) -> Axis:
    """The fewest tiles that cover `length` with overlaps of at least `overlap` (spec 5.4).

    What the tiles cover beyond `length` widens the overlaps by one `unit` at a time, first overlap
    first, around and around. `length`, `tile` and `overlap` are multiples of `unit`.
    """
    if length <= tile:
        return Axis(length, (0,), ())
    seams = tiles_along(length, tile=tile, overlap=overlap) - 1
    units = (tile + seams * (tile - overlap) - length) // unit
    overlaps = [overlap + unit * (units // seams + (i < units % seams)) for i in range(seams)]
    starts = [0]
    for shared in overlaps:
        starts.append(starts[-1] + tile - shared)
    return Axis(tile, tuple(starts), tuple(overlaps))


def split_tiles(image: torch.Tensor, rows: Axis, columns: Axis) -> list[torch.Tensor]:
    """Tiles `[..., rows.size, columns.size]` of `image` `[..., H, W]`, row by row."""
    return [image[..., y : y + rows.size, x : x + columns.size] for y in rows.starts for x in columns.starts]


def cross_fade(before: torch.Tensor, after: torch.Tensor, extent: int, *, dim: int) -> torch.Tensor:
    """`after`, its first `extent` entries along `dim` faded over from the last ones of `before`.

    Entry k is before * (1 - k/extent) + after * (k/extent).
    """
    shape = [extent if axis == dim % after.ndim else 1 for axis in range(after.ndim)]
    weight = torch.arange(extent, device=after.device, dtype=after.dtype).div(extent).view(shape)
    old = before.narrow(dim, before.shape[dim] - extent, extent)
    new = after.narrow(dim, 0, extent)
    rest = after.narrow(dim, extent, after.shape[dim] - extent)
    return torch.cat([old * (1 - weight) + new * weight, rest], dim)


def stitch(tiles: Sequence[torch.Tensor], rows: Axis, columns: Axis) -> torch.Tensor:
    """One image `[..., H, W]` from the tiles of `split_tiles`, in its order.

    A tile fades over from the tile above, then from the tile to the left, both as they came from
    the network: a corner is not a four-way blend. What it shares with the next tile belongs to the
    next.
    """
    width = len(columns.starts)
    lines = []
    for y in range(len(rows.starts)):
        line = []
        for x in range(width):
            tile = tiles[y * width + x]
            if y:
                tile = cross_fade(tiles[(y - 1) * width + x], tile, rows.overlaps[y - 1], dim=-2)
            if x:
                tile = cross_fade(tiles[y * width + x - 1], tile, columns.overlaps[x - 1], dim=-1)
            line.append(_own_part(tile, rows.overlaps[y : y + 1], columns.overlaps[x : x + 1]))
        lines.append(torch.cat(line, dim=-1))
    return torch.cat(lines, dim=-2)


def _own_part(tile: torch.Tensor, below: Sequence[int], right: Sequence[int]) -> torch.Tensor:
    height, width = tile.shape[-2] - sum(below), tile.shape[-1] - sum(right)
    return tile[..., :height, :width]
