"""What every training script shares: a clock, optimizer steps that survive a NaN, averaged weights, a loss curve."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

Tensors = dict[str, torch.Tensor]

PATIENCE = 20  # steps in a row without a finite gradient before the averaged weights are taken back


class Clock:
    """Seconds since it was made, out of so many that may be used."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def fraction(self) -> float:
        """Of the time that is used up, at most 1."""
        return min(1.0, self.elapsed / self.seconds)

    @property
    def done(self) -> bool:
        return self.elapsed >= self.seconds


class Every:
    """True at most once in so many seconds: `if every(): ...`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.last = seconds, time.monotonic()

    def __call__(self) -> bool:
        due = time.monotonic() - self.last >= self.seconds
        if due:
            self.last = time.monotonic()
        return due


class Trainer:
    """AdamW over the float32 parameters of a module that want gradients.

    The rate warms up over `warmup` steps and falls to zero as a cosine of the clock. Gradients are clipped to norm
    `clip`; a step without a finite loss and gradient is skipped. `average` holds the exponential moving average of
    the parameters by name.
    """

    def __init__(
        self,
        module: nn.Module,
        clock: Clock,
        *,
        rate: float,
        warmup: int = 200,
        clip: float = 1.0,
        decay: float = 0.999,
    ) -> None:
        self.clock, self.rate, self.warmup, self.clip, self.decay = clock, rate, warmup, clip, decay
        self.module = module
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = list(named.values())
        self.average: Tensors = {name: p.detach().clone() for name, p in named.items()}
        fused = self.parameters[0].device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.parameters, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
        self.steps, self.skipped, self.bad_in_a_row = 0, 0, 0

    @torch.no_grad()
    def update(self, loss: torch.Tensor) -> bool:
        """One update from the gradients of `loss`; False if it was skipped. Waits for a GPU to have them."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.steps += 1
        if not torch.isfinite(norm + loss).item():
            self._bad()
            return False
        self.bad_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = self.current_rate()
        self.optimizer.step()
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))  # the first steps are soon forgotten
        torch._foreach_lerp_(list(self.average.values()), self.parameters, 1.0 - decay)
        return True

    def weights(self) -> Tensors:
        """All parameters of the module by name: averages of those that are trained, the others as they are."""
        return dict(self.module.named_parameters()) | self.average

    def current_rate(self) -> float:
        """The learning rate of the next step."""
        warm = min(1.0, (self.steps + 1) / self.warmup)
        return self.rate * warm * 0.5 * (1.0 + math.cos(math.pi * self.clock.fraction))

    def _bad(self) -> None:
        self.skipped += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= PATIENCE:
            for parameter, average in zip(self.parameters, self.average.values(), strict=True):
                parameter.copy_(average)
            self.optimizer.state.clear()
            self.bad_in_a_row = 0


class Curve:
    """A loss curve in a JSON file, written anew with every entry, and a line on the console."""

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        self.file, self.facts, self.entries = file, dict(facts), list[dict[str, float]]()

    def add(self, **values: float) -> None:
        self.entries.append({name: round(float(value), 6) for name, value in values.items()})
        print(self.file.stem, *(f"{name} {value:.5g}" for name, value in values.items()), flush=True)  # noqa: T201
        self.write()

    def write(self, **facts: Any) -> None:
        """The file with all that is known so far; `facts` are added to it."""
        self.facts |= facts
        write_whole(self.file, lambda file: file.write_text(json.dumps({**self.facts, "curve": self.entries}) + "\n"))


def write_whole(file: Path, write: Callable[[Path], Any]) -> None:
    """`write` a file beside `file`, which then takes its name: never half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    write(partial)
    partial.replace(file)


def save_weights(tensors: Mapping[str, torch.Tensor], file: Path, dtype: torch.dtype = torch.float16) -> None:
    """All tensors in `dtype` in one whole safetensors file."""
    held = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    write_whole(file, lambda partial: save_file(held, partial, {"format": "pt"}))


def load_weights(module: nn.Module, file: Path) -> None:
    """What `save_weights` wrote, into parameters of a module; every name of the file must be one of them."""
    wanted = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in load_file(file).items():
            wanted[name].copy_(tensor)
