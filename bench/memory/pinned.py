"""Networks in pinned host memory whose many blocks share the weights of a few, and a store that times its copies.

Pinning and filling all 86 GiB would take longer than what is to be measured. A copy of a shared block is a copy
like any other: the bytes come from host memory, of which the few take far more than a cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from bench.memory.run import Mark, Run, between
from h3serve.models.module_tensors import empty, set_tensors
from h3serve.runtime.offload.placement import OffloadedNetwork, Streaming, blocks_of, from_host
from h3serve.runtime.offload.weight_store import HostStore, Store
from h3serve.weights.files.memory_buffers import Flat


class TimedStore:
    """A store that knows how long each copy took on the device."""

    def __init__(self, run: Run, store: Store) -> None:
        self._run, self.store = run, store
        self._spans: list[tuple[int, Mark, Mark]] = []

    @property
    def flats(self) -> Sequence[Flat]:
        return self.store.flats

    def send(self, group: int, target: torch.Tensor) -> None:
        began = self._run.mark()
        self.store.send(group, target)
        self._spans.append((self.flats[group].num_bytes, began, self._run.mark()))

    def close(self) -> None:
        self.store.close()

    def take(self) -> tuple[int, float]:
        """Bytes and seconds of all copies since the last call; call it when the device has nothing to do."""
        spans, self._spans = self._spans, []
        return sum(size for size, _, _ in spans), sum(between(began, ended) for _, began, ended in spans)


def share_weights(network: nn.Module, name: str, distinct: int) -> None:
    """Block i gets the weights of block i % distinct."""
    blocks = blocks_of(network, name)
    for number, block in enumerate(blocks[distinct:], distinct):
        set_tensors(block, blocks[number % distinct].state_dict())


def to_pinned(run: Run, network: nn.Module, name: str, distinct: int | None) -> TimedStore:
    """The weights of such a network to the host, each shared block once; None: no block is shared."""
    blocks = blocks_of(network, name)
    distinct = len(blocks) if distinct is None else distinct
    for block in blocks[distinct:]:
        empty(block)
    store = from_host(network, name, device=run.device, stream=None).store
    assert isinstance(store, HostStore) and isinstance(store.flats, list)
    for number in range(distinct, len(blocks)):
        store.flats[1 + number] = store.flats[1 + number % distinct]
        store._groups[1 + number] = store._groups[1 + number % distinct]
    return TimedStore(run, store)


def visiting(
    run: Run, network: nn.Module, name: str, store: Store, how: Streaming | None
) -> OffloadedNetwork[nn.Module]:
    """The network over its store, streamed as `how` says, or whole."""
    return OffloadedNetwork(network, store, blocks_of(network, name), device=run.device, stream=how)
