"""What this machine has: device memory within this process's share, host memory, units of its GPU; names of devices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3serve.core.errors import RequestError
from h3serve.core.settings import DType, one_of
from h3serve.system.host_memory import host_memory


@dataclass(frozen=True)
class Machine:
    """Bytes there are and bytes that are free, on the device and on the host."""

    device_bytes: int
    device_free: int
    host_bytes: int
    host_free: int


def measure(device: torch.device) -> Machine:
    """This machine now. On a CPU the device is the host."""
    total, free = host_memory()
    if device.type != "cuda":
        return Machine(total, free, total, free)
    device_free, device_total = torch.cuda.mem_get_info(device)
    share = int(device_total * torch.cuda.get_per_process_memory_fraction(device))
    held = torch.cuda.memory_reserved(device)
    return Machine(share, min(device_free, share - held), total, free)


def make_current(device: torch.device) -> None:
    """Kernels that are not torch's own (Triton, FlashAttention-4) run on the calling thread's current GPU."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def has_float8_units(device: torch.device) -> bool:
    """Whether 8-bit matrix products are faster here than 16-bit ones: Ada, Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def resolve_device(name: str) -> torch.device:
    """`auto` is the first GPU, or the CPU without one; a GPU always has its number. RequestError if it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError("device", name, "cpu, cuda, cuda:N or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise RequestError("device", name, "cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(
            "device", name, f"this machine has {torch.cuda.device_count()} usable GPUs; cpu works everywhere"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on the CPU and the release's bfloat16 on a GPU."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in known:
        raise RequestError("dtype", name, one_of(DType))
    return known[name]
