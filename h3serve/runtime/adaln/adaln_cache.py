"""The AdaLN cache of four levels: from a request's timesteps to slots in the slab (spec/transformer.md 2.3-2.4).

What is not in the slab comes from host pages, or else from a sidecar, or else is computed in one pass, and is
then held by every quicker level. All of that happens once per request, before its first step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np
from safetensors import SafetensorError

from h3serve.models.transformer.modulation import ModulationNetwork
from h3serve.runtime.adaln.device_slab import Slab, Slots
from h3serve.runtime.adaln.host_pages import PageCache
from h3serve.runtime.adaln.modulation_tables import Key, Pages, Scheduled, Steps, count_of, distinct, key_of
from h3serve.runtime.adaln.rebuild import Projections, rebuild
from h3serve.runtime.adaln.sidecar import Sidecar, SidecarFolder
from h3serve.weights.files import memory_buffers

log = logging.getLogger(__name__)

READERS = 4  # sidecar steps read and checked at once


@dataclass
class LevelCount:
    """What one level did: keys found and not found, keys or schedules dropped, bytes moved, seconds spent."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class Counts:
    """Counters of all levels since the start."""

    slab: LevelCount = field(default_factory=LevelCount)
    pages: LevelCount = field(default_factory=LevelCount)
    sidecar: LevelCount = field(default_factory=LevelCount)
    rebuild: LevelCount = field(default_factory=LevelCount)


class AdaLN:
    """The four levels of one transformer. One request at a time prepares tables; several may use them."""

    def __init__(
        self,
        network: ModulationNetwork,
        projections: Projections,
        *,
        slab: Slab,
        pages: PageCache,
        sidecars: SidecarFolder | None,
        writes: bool = True,
    ) -> None:
        """`network` has no projections in its blocks; `writes` says whether this process writes sidecars."""
        self._network, self.projections = network, projections
        self.slab, self.pages, self.sidecars = slab, pages, sidecars
        self._writes = writes
        self._counts = Counts()

    @contextmanager
    def schedule(self, steps: Steps) -> Iterator[Scheduled]:
        """The tables of all steps of a request, held until the `with` block ends.

        CapacityError, before anything is computed, if they are more than the slab may hold.
        """
        by_step = [key_of(timesteps) for timesteps in steps]
        keys = distinct(by_step)
        with self.slab.using(keys):
            slots = self._slots(keys)
            yield Scheduled(self.slab.modulation(), [np.array(slots[key], np.int64) for key in by_step])

    def prepare(self, steps: Steps) -> None:
        """Gets a schedule ready at all levels, as is done at start-up for the default one."""
        with self.schedule(steps):
            pass

    def refresh(self, projections: Projections, sidecars: SidecarFolder | None) -> dict[str, int]:
        """Takes the projections of new weights: nothing that was made from the old ones is used again.

        Returns how many keys the slab and how many schedules the pages held.
        """
        self.projections, self.sidecars = projections, sidecars
        return {"slab_keys": self.slab.clear(), "page_schedules": self.pages.clear()}

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters of every level since the start."""
        self._counts.slab.evictions = self.slab.evictions
        self._counts.pages.evictions = self.pages.evictions
        return asdict(self._counts)

    def _slots(self, keys: Sequence[Key]) -> Mapping[Key, Slots]:
        found = {key: self.slab.find(key) for key in keys}
        missing = [key for key in keys if found[key] is None]
        self._count(self._counts.slab, len(keys), missing)
        if not missing:
            self.pages.touch(keys)
        else:
            self.pages.settle()
            with self.slab.filling(missing) as slots:
                left = self._from_pages(missing, slots)
                unseen = self._from_sidecars(left, slots)
                self._rebuild(unseen, slots)
            self._store(keys, is_new=bool(unseen))
        return {key: self.slab.find(key) or () for key in keys}

    def _from_pages(self, keys: Sequence[Key], slots: Mapping[Key, Slots]) -> list[Key]:
        began, left = time.perf_counter(), []
        for key in keys:
            pages = self.pages.find(key)
            if pages is None:
                left.append(key)
                continue
            self._put(slots[key], pages)
        self.pages.copied_out()
        self._count(self._counts.pages, len(keys), left, since=began)
        self._counts.pages.bytes += self._bytes(keys) - self._bytes(left)
        return left

    def _from_sidecars(self, keys: Sequence[Key], slots: Mapping[Key, Slots]) -> list[Key]:
        if self.sidecars is None or not keys:
            return list(keys)
        began, folder = time.perf_counter(), self.sidecars
        places = {key: sidecar for key in keys if (sidecar := folder.find(key)) is not None}
        read: set[Key] = set()
        staging = self._staging(max(map(count_of, places), default=0))
        with ThreadPoolExecutor(READERS, thread_name_prefix="h3-sidecar") as pool:
            for at in range(0, len(places), READERS):
                batch = list(places)[at : at + READERS]
                staged = {key: pages[: count_of(key)] for key, pages in zip(batch, staging, strict=False)}
                whole = pool.map(lambda key, staged=staged: self._read(places[key], key, staged[key]), batch)
                good = [key for key, is_whole in zip(batch, whole, strict=True) if is_whole]
                for key in good:
                    self._put(slots[key], staged[key])
                memory_buffers.settle(memory_buffers.record(self.slab.device))
                read.update(good)
        left = [key for key in keys if key not in read]
        self._count(self._counts.sidecar, len(keys), left, since=began)
        self._counts.sidecar.bytes += self._bytes(keys) - self._bytes(left)
        return left

    def _read(self, sidecar: Sidecar, key: Key, pages: Pages) -> bool:
        assert self.sidecars is not None
        return self.sidecars.read(sidecar, key, pages)

    def _staging(self, width: int) -> list[Pages]:
        """Returns host memory for the keys that are read at once, `width` pages each."""
        values, dtype = self.slab.shape.values, self.slab.dtype
        pinned = self.slab.device.type == "cuda"
        memory = memory_buffers.host_buffer(READERS * width * values * dtype.itemsize, pinned=pinned, dtype=dtype)
        return [list(pages) for pages in memory.view(READERS, width, values)]

    def _rebuild(self, keys: Sequence[Key], slots: Mapping[Key, Slots]) -> None:
        if not keys:
            return
        began, count = time.perf_counter(), self._counts.rebuild
        count.bytes += rebuild(
            self._network,
            self.projections,
            keys,
            lambda key, layer, tables: self.slab.put_layer(slots[key], layer, tables),
            device=self.slab.device,
        )
        memory_buffers.settle(memory_buffers.record(self.slab.device))
        self._count(count, len(keys), [], since=began)

    def _store(self, keys: Sequence[Key], *, is_new: bool) -> None:
        """Copies what is now in the slab to the slower levels."""
        self.pages.put(keys, self._get)
        if is_new and self._writes and self.sidecars is not None:
            try:
                self.sidecars.write(keys, self._get_now)
            except (OSError, SafetensorError) as error:  # a full disk costs time, not the request
                log.warning("modulation tables could not be kept on disk: %s", error)

    def _put(self, slots: Slots, pages: Pages) -> None:
        for slot, page in zip(slots, pages, strict=True):
            self.slab.put(slot, page)

    def _get(self, key: Key, pages: Pages) -> None:
        for slot, page in zip(self.slab.find(key) or (), pages, strict=True):
            self.slab.get(slot, page)

    def _get_now(self, key: Key, pages: Pages) -> None:
        self._get(key, pages)
        memory_buffers.settle(memory_buffers.record(self.slab.device))

    def _bytes(self, keys: Sequence[Key]) -> int:
        return sum(map(count_of, keys)) * self.slab.shape.values * self.slab.dtype.itemsize

    @staticmethod
    def _count(count: LevelCount, asked: int, missed: Sequence[Key], *, since: float | None = None) -> None:
        count.hits += asked - len(missed)
        count.misses += len(missed)
        if since is not None:
            count.seconds += time.perf_counter() - since
