"""Setting a GPU (or CPU) up for training, and finding out which of several ways is the fastest on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

OutOfMemory = torch.OutOfMemoryError


def prepare(seed: int) -> torch.device:
    """The device to train on: the first GPU, or the CPU. Float32 products may use TF32."""
    torch.manual_seed(seed)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    return torch.device("cuda", 0)


def fastest(trials: Mapping[str, Callable[[], object]], device: torch.device, repeats: int = 3) -> str:
    """Name of the trial that takes the least time; one that fails is out, and one at least must not."""
    seconds: dict[str, float] = {}
    for name, trial in trials.items():
        try:
            trial()  # kernels are chosen and memory is taken
            _finish(device)
            start = time.monotonic()
            for _ in range(repeats):
                trial()
            _finish(device)
            seconds[name] = (time.monotonic() - start) / repeats
        except Exception as error:  # whatever a compiler or a kernel lacks
            print(f"{name} is out: {type(error).__name__} {str(error)[:200]}", flush=True)  # noqa: T201
    print("seconds a step:", {name: round(value, 4) for name, value in seconds.items()}, flush=True)  # noqa: T201
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return min(seconds, key=lambda name: seconds[name])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
