"""Loss and gradients of a batch, kernel by kernel or as one CUDA graph.

A step of these small networks is thousands of kernels, and to launch them one by one takes longer than they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Results = TypeVar("Results")
Losses = Callable[[Tensor], tuple[Tensor, ...]]  # of a batch; the first one is to be made small
WARM_UP = 3  # runs before a graph is captured, so that kernels are chosen and constants made


class Eager:
    """Calls give the losses of a batch, and leave gradients in the parameters."""

    def __init__(self, losses: Losses, parameters: Sequence[nn.Parameter]) -> None:
        self.losses, self.parameters = losses, parameters

    def __call__(self, batch: Tensor) -> tuple[Tensor, ...]:
        for parameter in self.parameters:
            parameter.grad = None
        return _with_gradients(self.losses, batch)


class Captured:
    """The same with one graph for every shape of a batch. What a call gives is overwritten by the next one.

    The losses may not wait for the device nor send anything to it, and what they keep from one call to the next
    must stay where it is.
    """

    def __init__(self, losses: Losses, parameters: Sequence[nn.Parameter]) -> None:
        self.losses, self.parameters = losses, parameters
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, tuple[Tensor, ...]]] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: no two run at once, and nothing of one is read later
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]

    def __call__(self, batch: Tensor) -> tuple[Tensor, ...]:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        if batch.shape not in self.graphs:
            self.graphs[batch.shape] = self._capture(batch)
        graph, held, results = self.graphs[batch.shape]
        held.copy_(batch)
        graph.replay()
        return results

    def _capture(self, batch: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, tuple[Tensor, ...]]:
        held = batch.clone()
        graph, results = record(lambda: self._run(held), pool=self.pool)
        return graph, held, results

    def _run(self, batch: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_zero_(self.gradients)
        return _with_gradients(self.losses, batch)


def record(run: Callable[[], Results], **options: Any) -> tuple[torch.cuda.CUDAGraph, Results]:
    """`run` as a graph of the current device, and what it gives: tensors that every replay fills anew."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        results = run()
    return graph, results


def _with_gradients(losses: Losses, batch: Tensor) -> tuple[Tensor, ...]:
    results = losses(batch)
    results[0].backward()
    return tuple(result.detach() for result in results)
