"""Level 2: modulation tables in host memory, one page per timestep, pinned where there is a GPU.

Whole schedules come and go: dropping one frees the pages that no other schedule has. All ranks hold the same
number of pages, so that they hit and miss alike whatever memory their hosts have.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from h3serve.runtime.adaln.modulation_tables import Key, Page, Pages, TableShape, count_of, distinct
from h3serve.weights.files import memory_buffers

Schedule = frozenset[Key]


@dataclass
class _Held:
    """A key's pages, how many schedules have it, and when they are whole."""

    pages: list[Page]
    schedules: int = 0
    whole: torch.cuda.Event | None = None


class PageCache:
    """Holds at most `count` pages; least recently used schedules make room."""

    def __init__(self, shape: TableShape, count: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.count, self.dtype = shape, count, dtype
        self._device = device
        self._stream = memory_buffers.new_stream(device)
        self._held: dict[Key, _Held] = {}
        self._schedules: OrderedDict[Schedule, None] = OrderedDict()  # least recently used first
        self._free: list[Page] = []
        self._made = 0
        self._read_out: torch.cuda.Event | None = None  # the last copy from pages to the device
        self._filled: torch.cuda.Event | None = None  # the last copy into pages
        self.evictions = 0  # schedules
        self.skips = 0  # schedules that alone are larger than the cache

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory taken so far; it grows as schedules come."""
        return self._made * self.shape.values * self.dtype.itemsize

    def find(self, key: Key) -> Pages | None:
        """A key's pages, whole; None if they are not held."""
        held = self._held.get(key)
        if held is None:
            return None
        memory_buffers.settle(held.whole)
        held.whole = None
        return held.pages

    def touch(self, keys: Sequence[Key]) -> None:
        """Marks the schedule of these keys as the most recently used one, if it is held."""
        if (schedule := frozenset(keys)) in self._schedules:
            self._schedules.move_to_end(schedule)

    def copied_out(self) -> None:
        """Notes that pages are being copied to the device: none is written before those copies are done."""
        self._read_out = memory_buffers.record(self._device)

    def settle(self) -> None:
        """Waits for all copies into pages, after which their sources may be written again."""
        memory_buffers.settle(self._filled)

    def put(self, keys: Sequence[Key], fill: Callable[[Key, Pages], None]) -> bool:
        """Holds a schedule; `fill` writes the pages of a key that is not held yet, on a stream beside the computing.

        False, and nothing changed, if the schedule is larger than the cache. If `fill` fails the
        schedule is not held and no page is lost.
        """
        schedule = frozenset(keys)
        if sum(map(count_of, schedule)) > self.count:
            self.skips += 1
            return False
        if schedule in self._schedules:
            self._schedules.move_to_end(schedule)
            return True
        missing = [key for key in distinct(keys) if key not in self._held]
        present = [key for key in schedule if key in self._held]
        self._hold(present)  # making room below must not drop them
        try:
            self._fill({key: self._take(count_of(key)) for key in missing}, fill)
        except BaseException:
            self._let_go(present)
            raise
        self._hold(missing)
        self._schedules[schedule] = None
        return True

    def clear(self) -> int:
        """Drops all schedules, after the weights have changed; returns how many were held."""
        count = len(self._schedules)
        for held in self._held.values():
            memory_buffers.settle(held.whole)
            self._free += held.pages
        self._held.clear()
        self._schedules.clear()
        return count

    def _fill(self, taken: dict[Key, list[Page]], fill: Callable[[Key, Pages], None]) -> None:
        queued = memory_buffers.record(self._device)
        memory_buffers.settle(self._read_out)
        try:
            with memory_buffers.on(self._stream):
                memory_buffers.wait(queued, self._device)
                for key, pages in taken.items():
                    fill(key, pages)
                whole = memory_buffers.record(self._device)
        except BaseException:
            if self._stream is not None:
                self._stream.synchronize()
            self._free += [page for pages in taken.values() for page in pages]
            raise
        self._filled = whole
        self._held |= {key: _Held(pages, whole=whole) for key, pages in taken.items()}

    def _hold(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._held[key].schedules += 1

    def _let_go(self, keys: Sequence[Key]) -> None:
        for key in keys:
            held = self._held[key]
            held.schedules -= 1
            if not held.schedules:
                memory_buffers.settle(held.whole)
                self._free += self._held.pop(key).pages

    def _take(self, count: int) -> list[Page]:
        while len(self._free) < count:
            if self._made < self.count:
                self._make(min(self.count - self._made, count - len(self._free)))
                continue
            oldest, _ = self._schedules.popitem(last=False)
            self.evictions += 1
            self._let_go(list(oldest))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _make(self, count: int) -> None:
        size = self.shape.values * self.dtype.itemsize
        memory = memory_buffers.host_buffer(count * size, pinned=self._device.type == "cuda", dtype=self.dtype)
        self._free += list(memory.view(count, self.shape.values))
        self._made += count


def page_count(
    shape: TableShape, dtype: torch.dtype, *, limit_bytes: int, free_bytes: int, smallest: Callable[[int], int]
) -> int:
    """The number of pages that fit in `limit_bytes` and in half of the host's free memory, on the rank that has least.

    `smallest` returns the minimum over ranks; every rank has to call it.
    """
    size = shape.values * dtype.itemsize
    return smallest(max(0, min(limit_bytes, free_bytes // 2)) // size)
