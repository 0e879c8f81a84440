"""Level 1: modulation tables on the device, one slot per timestep, at fixed addresses.

A step is served by pointing into the slab: the transformer is handed the whole slab as its tables, and each row's
timestep index is the number of a slot. So a captured graph stays valid whatever the slots hold.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from h3serve.core.errors import CapacityError
from h3serve.models.transformer.modulation import Modulation
from h3serve.models.transformer.transformer_config import VECTORS
from h3serve.runtime.adaln.modulation_tables import Key, Page, TableShape, count_of

Slots = tuple[int, ...]


class Slab:
    """Slots by key: the least recently used keys make room, one by one; keys in use never do."""

    def __init__(self, shape: TableShape, slots: int, *, limit: int, device: torch.device, dtype: torch.dtype) -> None:
        """Starts with `slots` slots and grows to `limit` where a request needs it."""
        self.shape, self.limit, self.device, self.dtype = shape, limit, device, dtype
        self._held: OrderedDict[Key, Slots] = OrderedDict()  # least recently used first
        self._in_use: Counter[Key] = Counter()
        self._free: list[int] = []
        self.evictions = 0
        self.moves = 0  # times the addresses changed: whoever captured a graph captures it anew
        self._blocks, self._final = self._empty(slots)
        self._free += range(slots)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._final.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory held."""
        return self._blocks.nbytes + self._final.nbytes

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys held, least recently used first."""
        return tuple(self._held)

    def modulation(self) -> Modulation:
        """All slots as one set of tables: of each block's, row 3 * slot + modality."""
        shape = (self.shape.layers, -1, VECTORS, self.shape.hidden)
        return Modulation(self._blocks.view(shape), self._final.view(-1, 2, self.shape.hidden))

    def find(self, key: Key) -> Slots | None:
        """The key's slots, now the most recently used ones; None if it is not held."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    @contextmanager
    def using(self, keys: Iterable[Key]) -> Iterator[None]:
        """Protects keys from eviction inside the `with` block, whether they are held already or put there.

        The slab grows if they need more slots than there are beside other keys in use; CapacityError
        if that is beyond its limit.
        """
        keys = tuple(keys)
        self._reserve(sum(map(count_of, {*keys, *self._in_use})))
        self._in_use.update(keys)
        try:
            yield
        finally:
            self._in_use.subtract(keys)
            self._in_use = +self._in_use

    @contextmanager
    def filling(self, keys: Sequence[Key]) -> Iterator[dict[Key, Slots]]:
        """Slots to write keys into; keys count as held once the `with` block ends, and not at all if it fails."""
        slots = {key: self._take(count_of(key)) for key in keys}
        try:
            yield slots
        except BaseException:
            self._free += [slot for taken in slots.values() for slot in taken]
            raise
        self._held |= slots

    @torch.no_grad()
    def put(self, slot: int, page: Page) -> None:
        """Copies one timestep's tables into its slot; from the host without waiting."""
        blocks, final = self.shape.split(page)
        self._blocks[:, slot].copy_(blocks, non_blocking=True)
        self._final[slot].copy_(final, non_blocking=True)

    @torch.no_grad()
    def put_layer(self, slots: Slots, layer: int | None, tables: torch.Tensor) -> None:
        """Copies a block's tables [3M, 6, hidden], or the final layer's [M, 2, hidden] (`layer` None), to M slots."""
        into = self._final if layer is None else self._blocks[layer]
        for slot, values in zip(slots, tables.reshape(len(slots), -1), strict=True):
            into[slot].copy_(values)

    @torch.no_grad()
    def get(self, slot: int, page: Page) -> None:
        """Copies one timestep's tables out of its slot."""
        blocks, final = self.shape.split(page)
        blocks.copy_(self._blocks[:, slot], non_blocking=True)
        final.copy_(self._final[slot], non_blocking=True)

    def clear(self) -> int:
        """Drops all keys, after the weights have changed; returns how many were held."""
        assert not self._in_use, "a request is using the tables"
        count = len(self._held)
        self._free += [slot for slots in self._held.values() for slot in slots]
        self._held.clear()
        return count

    def _take(self, count: int) -> Slots:
        while len(self._free) < count:
            oldest = next(key for key in self._held if not self._in_use[key])
            self._free += self._held.pop(oldest)
            self.evictions += 1
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def _reserve(self, slots: int) -> None:
        if slots <= self.slots:
            return
        if slots > self.limit:
            each = self.shape.values * self.dtype.itemsize / 2**20
            raise CapacityError(
                f"the schedule has {slots} timesteps of {each:.2f} MiB each, the modulation slab may hold "
                f"{self.limit}: fewer steps need less"
            )
        self._grow(slots)
        self.moves += 1

    @torch.no_grad()
    def _grow(self, slots: int) -> None:
        """Makes the tables larger; keys stay in their slots."""
        before = self.slots
        blocks, final = self._empty(slots)
        blocks[:, :before].copy_(self._blocks)
        final[:before].copy_(self._final)
        self._blocks, self._final = blocks, final
        self._free += range(before, slots)

    def _empty(self, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape, device, dtype = self.shape, self.device, self.dtype
        with torch.inference_mode(False):
            blocks = torch.zeros(shape.layers, slots, shape.block, device=device, dtype=dtype)
            return blocks, torch.zeros(slots, shape.final, device=device, dtype=dtype)
