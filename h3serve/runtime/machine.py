"""What this machine has: device memory within this process's share, host memory within its cgroup."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch


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


def host_memory(root: Path = Path("/")) -> tuple[int, int]:
    """(bytes, free bytes) that this process can have: the machine's, or less if its cgroup says so.

    Page cache counts as free: the system gives it up when memory is asked for.
    """
    fields = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for folder in _cgroups(root):
        limit, used = _number(folder, _LIMITS), _number(folder, _USED)
        if limit is None or used is None or limit >= total:
            continue
        total, free = limit, min(free, limit - used + _cached(folder))
    return total, max(0, free)


_LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroup v2, v1
_USED = ("memory.current", "memory.usage_in_bytes")


def _cgroups(root: Path) -> list[Path]:
    """Folders of this process's memory cgroup and the ones around it."""
    file, found = root / "proc/self/cgroup", []
    for line in file.read_text().splitlines() if file.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        inner = mount / path.lstrip("/")
        found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount)]
    return found


def _number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        if (file := folder / name).is_file():
            text = file.read_text().strip()
            return int(text) if text.isdigit() else None
    return None


def _cached(folder: Path) -> int:
    """Page cache of the group that can be dropped."""
    file = folder / "memory.stat"
    if not file.is_file():
        return 0
    stats = dict(line.split() for line in file.read_text().splitlines())
    return int(stats.get("inactive_file", 0)) + int(stats.get("active_file", 0))
