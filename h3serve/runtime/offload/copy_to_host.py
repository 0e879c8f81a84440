"""Results to host memory on a stream of their own, while the device computes the next ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import chain, islice
from typing import TypeVar

import torch

T = TypeVar("T")
Tensors = Sequence[torch.Tensor]


def to_host(results: Iterable[Tensors]) -> Iterator[Tensors]:
    """The tensors of each result in host memory, in order.

    From CUDA each result is handed out after the next one's work has been queued, so that whoever consumes it
    works beside the device; that holds as long as `results` itself does not wait for the device. Results on
    the CPU are handed on at once, as they are.
    """
    waiting: _Copy | None = None
    streams: dict[torch.device, torch.cuda.Stream] = {}
    for tensors in results:
        device = tensors[0].device
        if device.type != "cuda":
            yield tensors
            continue
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        copy = _Copy(tensors, streams[device])
        if waiting is not None:
            yield waiting.result()
        waiting = copy
    if waiting is not None:
        yield waiting.result()


def started(results: Iterable[T]) -> Iterator[T]:
    """The same results; the work of the first one is queued now, so that other work can be done beside it."""
    iterator = iter(results)
    first = list(islice(iterator, 1))
    return chain(first, iterator)


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """Work in the `with` block waits for nothing that is queued outside of it; what it reads has to be there."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(_beside(device))


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    """Kept: memory that was allocated on a stream serves that stream again, and allocating may wait for the device."""
    return torch.cuda.Stream(device, priority=-1)  # what is short goes first


class _Copy:
    """One copy under way; its sources are kept alive until it is done."""

    def __init__(self, tensors: Tensors, stream: torch.cuda.Stream) -> None:
        self._sources = tensors
        self._done = torch.cuda.Event(blocking=True)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._host = [_pinned_like(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
            self._done.record(stream)

    def result(self) -> Tensors:
        self._done.synchronize()
        return self._host


def _pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
