"""A rank's share of a replica: what is sharded before the weights come, what is connected after, minima over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from h3serve.core.errors import RequestError
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.video_vae.video_vae import Network, VideoVAE, in_batches
from h3serve.runtime.parallel.process_group import ProcessGroup, Ranks
from h3serve.runtime.parallel.sequence_parallel import shard_sequence
from h3serve.runtime.parallel.tensor_parallel import shard_denoiser, shard_text_encoder
from h3serve.weights.formats.entry_rows import Shard


class Share:
    """Of a replica of one rank: everything."""

    device: torch.device | None = None  # None: the settings say
    is_first = True
    divided: Mapping[str, int] = {}  # by how much a component's blocks are divided

    def shard(self, component: str, *, resident: bool) -> Shard | None:
        """How a component is sharded on this rank; None for one that is held whole."""
        del component, resident
        return None

    def connect(self, denoisers: Iterable[Denoiser], video_vae: VideoVAE) -> None:
        """Make loaded networks work together with those of the other ranks."""

    def smallest(self, count: int) -> int:
        """The least of all ranks' counts."""
        return count

    def largest(self, count: int) -> int:
        """The most of all ranks' counts."""
        return count

    def all_have(self, held: bool) -> bool:
        """Does every rank hold it?"""
        return held


ONE = Share()


class RankShare(Share):
    """Of several ranks. All of them load the same things in the same order."""

    def __init__(self, ranks: Ranks, *, encoder_parts: int = 1) -> None:
        """`encoder_parts`: all ranks, or 1 where each holds the text encoder whole (shape.encoder_parts)."""
        self._ranks = ranks
        self.device, self.is_first = ranks.device, ranks.leads
        self.divided = {"transformer": ranks.tp.size, "text_encoder": encoder_parts}

    def shard(self, component: str, *, resident: bool) -> Shard | None:
        """The transformer by `tp`, the text encoder over all ranks or not; only what stays on the device is sharded."""
        if component == "transformer" and self._ranks.tp.size > 1:
            if not resident:
                raise RequestError(
                    "tp", self._ranks.tp.size, "only weights that stay on the GPU are divided; they do not fit"
                )
            return shard_denoiser(self._ranks.tp)
        if component == "text_encoder" and resident and self.divided[component] > 1:
            return shard_text_encoder(self._ranks.world)
        return None

    def connect(self, denoisers: Iterable[Denoiser], video_vae: VideoVAE) -> None:
        """The sequence over `ulysses`, the tiles over all ranks."""
        self.connect_sequence(denoisers)
        share_tiles(video_vae, self._ranks.world)

    def connect_sequence(self, denoisers: Iterable[Denoiser]) -> None:
        """The sequence alone."""
        for denoiser in denoisers:
            shard_sequence(denoiser.transformer, self._ranks.ulysses)

    def smallest(self, count: int) -> int:
        """A collective."""
        return min(self._ranks.world.gather_json(count))

    def largest(self, count: int) -> int:
        """A collective."""
        return max(self._ranks.world.gather_json(count))

    def all_have(self, held: bool) -> bool:
        """A collective: a request that ended early may have left ranks with different caches."""
        return all(self._ranks.world.gather_json(held))


def share_tiles(vae: VideoVAE, group: ProcessGroup) -> None:
    """Make `vae` compute its tiles over `group`; its ranks have to encode and decode the same things."""
    vae.run_tiles = ParallelTiles(group)


class ParallelTiles:
    """Stands in for `in_batches`."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def __call__(self, network: Network, tiles: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
        """`network` of every tile, in order; where shares are uneven the last tile is computed again."""
        assert self._group.index is not None
        share = -(-len(tiles) // self._group.size)
        start = self._group.index * share
        own = [tiles[min(i, len(tiles) - 1)] for i in range(start, start + share)]
        outputs = torch.cat(in_batches(network, own, batch))
        return list(self._group.all_gather(outputs).split(len(tiles[0])))[: len(tiles)]
