"""The video VAE over several ranks: each computes its share of every picture's tiles, then all have all of them.

Tiles are independent until they are blended, and every window of a clip has many. All ranks blend, which costs
less than to tell apart who does; the frames are used on the rank that writes them.
"""

from __future__ import annotations

import torch

from h3serve.models.video_vae.video_vae import Network, VideoVAE, in_batches
from h3serve.runtime.parallel.process_group import ProcessGroup


def share_tiles(vae: VideoVAE, team: ProcessGroup) -> None:
    """Make `vae` compute its tiles over `team`; its ranks have to encode and decode the same things."""
    vae.run_tiles = ParallelTiles(team)


class ParallelTiles:
    """Stands in for `in_batches`."""

    def __init__(self, team: ProcessGroup) -> None:
        self._team = team

    def __call__(self, network: Network, tiles: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
        """`network` of every tile, in order; where shares are uneven the last tile is computed again."""
        assert self._team.index is not None
        share = -(-len(tiles) // self._team.size)
        start = self._team.index * share
        own = [tiles[min(i, len(tiles) - 1)] for i in range(start, start + share)]
        outputs = torch.cat(in_batches(network, own, batch))
        return list(self._team.all_gather(outputs).split(len(tiles[0])))[: len(tiles)]
