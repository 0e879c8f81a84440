"""The host side of a network: groups of tensors and how a group gets to a device.

A group is what travels together, a block say. `FileStore` leaves the bytes where they are, in the
safetensors files, so that all processes of a host share one copy, the page cache. `HostStore` holds
them in memory of its own, pinned where there is a GPU: quicker, but a copy per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from h3serve.models.key_map import Entry
from h3serve.runtime.offload import memory_buffers
from h3serve.runtime.offload.memory_buffers import Flat
from h3serve.weights.files.stored_bytes import RawReader
from h3serve.weights.files.tensor_index import TensorIndex

STAGES = 2  # one is read into while the other one is copied from
Shape = tuple[int, ...]


class Store(Protocol):
    """Groups of tensors on the host."""

    @property
    def flats(self) -> Sequence[Flat]:
        """Layout of every group."""

    def send(self, group: int, target: torch.Tensor) -> None:
        """Queue a group into `target`, uint8 [num_bytes] on any device, on the current stream."""

    def close(self) -> None:
        """Gives everything back; queued copies are finished first."""


class FileStore:
    """Groups read from safetensors files each time they are sent, through two small host buffers."""

    def __init__(
        self,
        index: TensorIndex,
        groups: Sequence[Mapping[str, Entry]],
        *,
        shape_of: Callable[[Entry], Shape],
        dtype_of: Callable[[Entry], torch.dtype],
        device: torch.device,
    ) -> None:
        """`groups[i]` maps the names that group i's tensors get to their entries."""
        self._index, self._groups, self._device = index, groups, device
        self.flats: Sequence[Flat] = [
            Flat.of({n: (shape_of(e), dtype_of(e)) for n, e in group.items()}) for group in groups
        ]
        self._stored = [Flat.of(self._sources(group)) for group in groups]
        self._reader = RawReader()
        self._stages: list[torch.Tensor] = []
        self._landing: torch.Tensor | None = None  # stored bytes on the device, before they are put in order
        self._copied: list[torch.cuda.Event | None] = [None] * STAGES
        self._turn = 0
        self.bytes_read = 0
        self.on_read: Callable[[int], None] | None = None  # told of all bytes read so far, after each group

    @torch.no_grad()
    def send(self, group: int, target: torch.Tensor) -> None:
        """Blocks while the bytes are read: call it from a thread that may."""
        layout = self._stored[group]
        host = self._stage()[: layout.num_bytes]
        views = layout.views(host)
        raw = [(self._index.tensors[n], v.reshape(-1).view(torch.uint8)) for n, v in views.items()]
        self.bytes_read += self._reader.read(raw)
        if self.on_read is not None:
            self.on_read(self.bytes_read)
        if target.device.type == "cuda":
            landing = self._land()[: layout.num_bytes]
            landing.copy_(host, non_blocking=True)
            self._copied[self._turn] = memory_buffers.record(target.device)
            views = layout.views(landing)
        self._turn = (self._turn + 1) % STAGES
        places = self.flats[group].views(target)
        for name, entry in self._groups[group].items():
            arrange(entry, [views[source] for source in entry.sources], places[name])

    def close(self) -> None:
        """Gives threads, files and buffers back."""
        for event in self._copied:
            memory_buffers.settle(event)
        self._reader.close()
        self._stages, self._landing = [], None

    def _sources(self, group: Mapping[str, Entry]) -> dict[str, tuple[Shape, torch.dtype]]:
        stored = [self._index.tensors[source] for entry in group.values() for source in entry.sources]
        return {tensor.name: (tensor.shape, tensor.dtype) for tensor in stored}

    def _stage(self) -> torch.Tensor:
        """The next host buffer, once the copy out of it is done."""
        if not self._stages:
            size, pinned = self._largest(), self._device.type == "cuda"
            self._stages = [memory_buffers.host_buffer(size, pinned=pinned) for _ in range(STAGES)]
        memory_buffers.settle(self._copied[self._turn])
        return self._stages[self._turn]

    def _land(self) -> torch.Tensor:
        if self._landing is None:
            self._landing = memory_buffers.device_buffer(self._largest(), self._device)
        return self._landing

    def _largest(self) -> int:
        return max(layout.num_bytes for layout in self._stored)


class HostStore:
    """All groups in host memory of this process, in their final form."""

    def __init__(self, flats: Sequence[Flat], fill: Callable[[int, torch.Tensor], None], *, pinned: bool) -> None:
        """`fill` writes a group into its buffer; groups are made one after another."""
        self.flats: Sequence[Flat] = flats
        self._groups: list[torch.Tensor] = []
        for number, flat in enumerate(flats):  # memory for a group is taken when the last one's source is gone
            self._groups.append(memory_buffers.host_buffer(flat.num_bytes, pinned=pinned))
            fill(number, self._groups[-1])

    @property
    def num_bytes(self) -> int:
        """Host memory held."""
        return sum(flat.num_bytes for flat in self.flats)

    @torch.no_grad()
    def send(self, group: int, target: torch.Tensor) -> None:
        """One copy, without waiting for it."""
        target.copy_(self._groups[group], non_blocking=True)

    def tensors(self, group: int) -> dict[str, torch.Tensor]:
        """The group's tensors, as views."""
        return self.flats[group].views(self._groups[group])

    def close(self) -> None:
        """Gives the memory back."""
        self._groups = []


def arrange(entry: Entry, sources: Sequence[torch.Tensor], target: torch.Tensor) -> None:
    """An entry's stored tensors into one of ours: put together, rows in our order, cast."""
    rows = sources[0] if len(sources) == 1 else torch.cat(list(sources))
    target.copy_(entry.reorder(rows) if entry.reorder else rows)
