"""Level 4: modulation tables computed, the AdaLN projections read layer by layer.

One pass over the checkpoint serves any number of keys. Each key is projected by itself, with its own number of
timesteps: the GEMM has the size that it has in a network whose projections are resident, thus the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from h3serve.models.key_map import Entry, KeyMap
from h3serve.models.transformer.denoiser import PREFIX, is_projection
from h3serve.models.transformer.modulation import ModulationNetwork, Modulator
from h3serve.runtime.adaln.modulation_tables import Key, timesteps_of
from h3serve.runtime.offload.block_streaming import Prefetcher, Streamed
from h3serve.runtime.offload.weight_store import FileStore
from h3serve.weights.files.tensor_index import TensorIndex

Write = Callable[[Key, int | None, torch.Tensor], None]  # key, layer or None for the final one, its tables


@dataclass(frozen=True)
class Projections:
    """The AdaLN projections of one transformer folder, on disk."""

    index: TensorIndex
    key_map: KeyMap  # of the whole denoiser
    dtype: torch.dtype  # what they compute in

    @property
    def sources(self) -> tuple[str, ...]:
        """All stored tensors that modulation depends on."""
        ours = [entry for entry in self.key_map.entries if entry.target.startswith(PREFIX)]
        return tuple(source for entry in ours for source in entry.sources)

    @property
    def num_bytes(self) -> int:
        """Bytes that one rebuild reads."""
        ours = [entry for entry in self.key_map.entries if is_projection(entry.target)]
        return sum(self.index.tensors[source].num_bytes for entry in ours for source in entry.sources)

    def open(self, network: ModulationNetwork, device: torch.device) -> FileStore:
        """A store of one group per layer; names are those inside the layer's projection."""
        held = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        groups: list[dict[str, Entry]] = [{} for _ in network.blocks]
        for entry in self.key_map.entries:
            if is_projection(entry.target):
                number, _, name = entry.target.removeprefix(f"{PREFIX}blocks.").partition(".adaln_proj.")
                groups[int(number)][name] = entry
        return FileStore(
            self.index,
            groups,
            shape_of=lambda entry: held[entry.target.removeprefix(PREFIX)],
            dtype_of=lambda _: self.dtype,
            device=device,
        )


@torch.no_grad()
def rebuild(
    network: ModulationNetwork, projections: Projections, keys: Iterable[Key], write: Write, *, device: torch.device
) -> int:
    """Computes the tables of `keys` and hands them to `write`; returns the bytes read.

    `network` has its timestep embedder and final projection on `device`; its blocks have no memory
    before and after.
    """
    embeddings = {key: network.embed(timesteps_of(key).to(device)) for key in keys}
    store = projections.open(network, device)
    prefetcher = Prefetcher(store, device)
    try:
        with Streamed(projections_of(network), prefetcher, first_group=0, cyclic=False):
            for layer in range(len(network.blocks)):
                for key, embedding in embeddings.items():
                    write(key, layer, network.project_layer(layer, embedding))
    finally:
        prefetcher.close()
        store.close()
    for key, embedding in embeddings.items():
        write(key, None, network.project_final(embedding))
    return store.reader.bytes_read


def projections_of(network: ModulationNetwork) -> list[nn.Module]:
    """The projection of every block."""
    return [block.adaln_proj for block in network.blocks if isinstance(block, Modulator)]
