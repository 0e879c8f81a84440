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
from h3serve.weights.files import memory_buffers
from h3serve.weights.files.memory_buffers import Flat
from h3serve.weights.files.tensor_index import TensorIndex
from h3serve.weights.files.tensor_reader import TensorReader
from h3serve.weights.formats.entry_rows import arrange, runs_of

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
    """Groups read from safetensors files each time they are sent."""

    def __init__(
        self,
        index: TensorIndex,
        groups: Sequence[Mapping[str, Entry]],
        *,
        shape_of: Callable[[Entry], Shape],
        dtype_of: Callable[[Entry], torch.dtype],
        device: torch.device,
    ) -> None:
        """`groups[i]` maps the names that group i's tensors get to their entries; `device` is where they will go."""
        self.flats: Sequence[Flat] = [
            Flat.of({n: (shape_of(e), dtype_of(e)) for n, e in group.items()}) for group in groups
        ]
        self._runs = [{name: runs_of(entry, index) for name, entry in group.items()} for group in groups]
        sources = [[source for entry in group.values() for source in entry.sources] for group in groups]
        self.reader = TensorReader(index, sources, pinned=device.type == "cuda")

    @torch.no_grad()
    def send(self, group: int, target: torch.Tensor) -> None:
        """Blocks while the bytes are read: call it from a thread that may."""
        stored, places = self.reader.read(group, target.device), self.flats[group].views(target)
        for name, runs in self._runs[group].items():
            arrange(runs, stored, places[name])

    def close(self) -> None:
        """Gives threads, files and buffers back."""
        self.reader.close()


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
