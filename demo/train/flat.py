"""Adam on one long float32 vector of all trained parameters: some ten launches a step, and the host never waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ALIGN = 64  # numbers: every parameter starts where matrix kernels like it
BETAS, EPS = (0.9, 0.98), 1e-8

Reduce = Callable[[Tensor], None]  # the mean over all ranks, in place


class FlatAdam:
    """Takes over the parameters of `module` that want gradients: they become views of a long vector.

    float32 parameters are views of the master itself, the others of a vector in their dtype, made anew from the master
    with every step. `average` is the moving average of the master. A gradient that is not finite counts as zero.
    """

    def __init__(self, module: nn.Module, *, clip: float = 1.0, decay: float = 0.999) -> None:
        self.clip, self.decay, self.steps = clip, decay, 0
        named = {n: p for n, p in module.named_parameters() if p.requires_grad}
        wide = {n: p for n, p in named.items() if p.dtype == torch.float32}
        narrow = {n: p for n, p in named.items() if p.dtype != torch.float32}
        self.places: dict[str, tuple[int, torch.Size]] = {}
        end = self._place(wide, 0)
        self.split, size = end, self._place(narrow, end)
        device = next(iter(named.values())).device
        self.master = torch.zeros(size, device=device)
        self.gradient, self.mean, self.square = (torch.zeros_like(self.master) for _ in range(3))
        dtype = next(iter(narrow.values())).dtype if narrow else torch.float32
        self.narrow, self.narrow_gradient = (torch.zeros(size - end, dtype=dtype, device=device) for _ in range(2))
        for name, parameter in named.items():
            self._view(self.master, name).copy_(parameter.detach())
            own = parameter.dtype == torch.float32
            held, gradient = (self.master, self.gradient) if own else (self.narrow, self.narrow_gradient)
            start, shape = self.places[name]
            start -= 0 if own else end
            parameter.data = held[start : start + shape.numel()].view(shape)
            parameter.grad = gradient[start : start + shape.numel()].view(shape)
        self.narrow.copy_(self.master[end:])
        self.average = self.master.clone()
        self.skipped = torch.zeros((), device=device)
        self.norm = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self, rate: float, reduce: Reduce | None = None) -> None:
        """One update from the gradients that `backward` left; they are zero afterwards."""
        self.gradient[self.split :].copy_(self.narrow_gradient)
        if reduce:
            reduce(self.gradient)
        self.norm = torch.linalg.vector_norm(self.gradient)
        fine = torch.isfinite(self.norm)
        self.skipped += ~fine
        scale = (self.clip / (self.norm + 1e-6)).clamp(max=1.0)
        gradient = torch.where(fine, self.gradient * scale, torch.zeros_like(self.gradient))
        self.steps += 1
        first, second = BETAS
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (self.square / (1 - second**self.steps)).sqrt_().add_(EPS)
        self.master.addcdiv_(self.mean, root, value=-rate / (1 - first**self.steps))
        self.narrow.copy_(self.master[self.split :])
        self.average.lerp_(self.master, 1 - min(self.decay, (1 + self.steps) / (10 + self.steps)))
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Zeros in all of them."""
        self.gradient.zero_()
        self.narrow_gradient.zero_()

    def averages(self) -> dict[str, Tensor]:
        """The moving averages by parameter name, float32."""
        return {name: self._view(self.average, name) for name in self.places}

    @torch.no_grad()
    def use(self, vector: Tensor) -> None:
        """Puts a vector like `master` or `average` into the parameters."""
        self.master.copy_(vector)
        self.narrow.copy_(self.master[self.split :])

    def state(self) -> dict[str, Any]:
        """All that a later run needs to go on."""
        vectors = {name: getattr(self, name) for name in ("master", "mean", "square", "average")}
        return {**vectors, "steps": self.steps, "places": self.places}

    def restore(self, state: dict[str, Any]) -> None:
        """What `state` gave, for the same parameters."""
        assert state["places"] == self.places, "other parameters"
        for name in ("mean", "square", "average"):
            getattr(self, name).copy_(state[name])
        self.use(state["master"].to(self.master.device))
        self.steps = state["steps"]

    def _place(self, named: dict[str, nn.Parameter], start: int) -> int:
        for name, parameter in named.items():
            self.places[name] = (start, parameter.shape)
            start += -(-parameter.numel() // ALIGN) * ALIGN
        return start

    def _view(self, vector: Tensor, name: str) -> Tensor:
        start, shape = self.places[name]
        return vector[start : start + shape.numel()].view(shape)


def rate_at(fraction: float, step: int, *, peak: float, last: float, warmup: int) -> float:
    """The learning rate after this part of the time: a warm-up in steps, then a cosine from `peak` to `last`."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))
    return (last + (peak - last) * cosine) * min(1.0, (step + 1) / warmup)
