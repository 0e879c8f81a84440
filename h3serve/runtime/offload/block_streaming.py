"""Runs a list of blocks of which only a few are on the device; the network does not know.

A hook in front of each block sees to it that its weights have arrived and sends for the next ones. They travel
on a stream of their own into a fixed pool of buffers, so that copying and computing overlap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn

from h3serve.models.module_tensors import empty, set_tensors
from h3serve.runtime.offload.weight_store import Store
from h3serve.weights.files import memory_buffers


class Prefetcher:
    """Brings groups of one store to the device beside the computing: one thread, one stream, in order."""

    def __init__(self, store: Store, device: torch.device) -> None:
        self.store, self.device = store, device
        self._stream = memory_buffers.new_stream(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="h3-prefetch")

    def bring(self, group: int, target: torch.Tensor) -> Future[torch.cuda.Event | None]:
        """Start bringing a group; whatever the computing stream has queued so far may still use `target`."""
        return self._thread.submit(self._bring, group, target, memory_buffers.record(self.device))

    def receive(self, coming: Future[torch.cuda.Event | None]) -> None:
        """The computing stream waits for the group; the host only until its copy is queued."""
        memory_buffers.wait(coming.result(), self.device)

    def close(self) -> None:
        """Finishes what is under way and gives the thread back."""
        self._thread.shutdown()
        if self._stream is not None:
            self._stream.synchronize()

    def _bring(self, group: int, target: torch.Tensor, after: torch.cuda.Event | None) -> torch.cuda.Event | None:
        with memory_buffers.on(self._stream):
            memory_buffers.wait(after, self.device)
            self.store.send(group, target)
            return memory_buffers.record(self.device)


class Streamed:
    """A list of blocks, streamed while the `with` block lasts; block i is group `first_group + i`.

    Device memory: `depth + 1` buffers, each as large as the largest streamed block, and `resident` blocks, evenly
    spread, that are there all the time. `cyclic` prefetches the first blocks again behind the last one.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        prefetcher: Prefetcher,
        *,
        first_group: int,
        depth: int = 1,
        resident: int = 0,
        cyclic: bool = True,
    ) -> None:
        self._blocks, self._prefetcher, self._first = blocks, prefetcher, first_group
        self._depth, self._cyclic = depth, cyclic
        self._resident = spread(resident, len(blocks))
        self._moving = [i for i in range(len(blocks)) if i not in self._resident]
        self._slots: list[torch.Tensor] = []
        self._holders: list[int | None] = []  # block of every slot, arrived or on its way
        self._coming: dict[int, Future[torch.cuda.Event | None]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self.waited_s = 0.0  # host time spent waiting for a block's bytes

    def __enter__(self) -> Streamed:
        flats, device = self._prefetcher.store.flats, self._prefetcher.device
        for number in sorted(self._resident):
            target = memory_buffers.device_buffer(flats[self._first + number].num_bytes, device)
            self._prefetcher.receive(self._prefetcher.bring(self._first + number, target))
            set_tensors(self._blocks[number], flats[self._first + number].views(target))
        size = max((flats[self._first + i].num_bytes for i in self._moving), default=0)
        slots = min(self._depth + 1, len(self._moving))
        self._slots = [memory_buffers.device_buffer(size, device) for _ in range(slots)]
        self._holders = [None] * slots
        for number in self._moving:
            hook = self._blocks[number].register_forward_pre_hook(lambda *_, number=number: self._arrive(number))
            self._hooks.append(hook)
        for number in self._moving[:slots]:
            self._send_for(number, current=None)
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for coming in self._coming.values():
            memory_buffers.settle(coming.result() if coming.exception() is None else None)
        for block in self._blocks:
            empty(block)
        self._hooks, self._slots, self._holders, self._coming = [], [], [], {}

    def _arrive(self, number: int) -> None:
        """In front of block `number`: its weights are there, the next ones on their way."""
        if number not in self._holders:
            self._send_for(number, current=None)
        if number in self._coming:
            began = time.perf_counter()
            self._prefetcher.receive(self._coming.pop(number))
            self.waited_s += time.perf_counter() - began
            slot = self._slots[self._holders.index(number)]
            set_tensors(self._blocks[number], self._prefetcher.store.flats[self._first + number].views(slot))
        for following in self._following(number):
            if following not in self._holders:
                self._send_for(following, current=number)

    def _following(self, number: int) -> list[int]:
        at = self._moving.index(number) + 1
        ahead = self._moving[at:] + (self._moving[: at - 1] if self._cyclic else [])
        return ahead[: len(self._slots) - 1]

    def _send_for(self, number: int, *, current: int | None) -> None:
        """Into an empty slot, or one that neither the current block nor one about to come holds."""
        wanted = {current, *(self._following(current) if current is not None else ())}
        free = [i for i, holder in enumerate(self._holders) if holder is None or holder not in wanted]
        slot = min(free, key=lambda i: self._holders[i] is not None)
        before = self._holders[slot]
        if before is not None:
            if before in self._coming:
                self._prefetcher.receive(self._coming.pop(before))
            empty(self._blocks[before])
        self._holders[slot] = number
        size = self._prefetcher.store.flats[self._first + number].num_bytes
        self._coming[number] = self._prefetcher.bring(self._first + number, self._slots[slot][:size])


def spread(count: int, total: int) -> frozenset[int]:
    """`count` of `total` numbers, evenly spread: a resident block gives the ones around it time to come."""
    count = min(count, total)
    return frozenset((2 * i + 1) * total // (2 * count) for i in range(count))
