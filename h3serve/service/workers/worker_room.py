"""Whether this machine holds more workers: the devices there are, and the memory that a worker takes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.estimate_memory import gib
from h3serve.service.jobs.error_replies import Refusal
from h3serve.system.host_memory import host_memory

_MARGIN = 0.1  # of the machine's memory, for everything else on it


def check_device(device: str, started: Sequence[str]) -> None:
    """RequestError for a device that is neither one that the server was `started` on nor a GPU of this machine."""
    gpus = [f"cuda:{index}" for index in range(gpu_count())]
    allowed = sorted({*started, *gpus})
    if device not in allowed:
        raise RequestError("device", device, ", ".join(allowed))


def check_shared_gpus(devices: Sequence[str], started: Sequence[str]) -> None:
    """RequestError if a GPU had more workers on it than the command line put there.

    A worker plans with a GPU's whole memory; only the operator can know that two fit.
    """
    most = Counter(map(place, started))
    for where, number in Counter(map(place, devices)).items():
        if where != "cpu" and number > max(1, most[where]):
            allowed = f"at most {max(1, most[where])} on {where}; each holds the whole model"
            raise RequestError("count", len(devices), allowed)


def check_memory(more: int, *, loaded: int) -> None:
    """CapacityError if host memory does not hold `more` workers as large as the largest that runs.

    `loaded` workers are whole; before one is, nobody knows what it takes: Refusal 409.
    """
    sizes = _worker_bytes()
    if not loaded or not sizes:
        raise Refusal(409, "no worker has loaded yet, so what one takes is not known; ask again", code="not_ready")
    total, free = host_memory()
    each = max(sizes)
    growing = sum(each - size for size in sorted(sizes)[: max(0, len(sizes) - loaded)])
    usable = int(free - growing - _MARGIN * total)
    if more * each > usable:
        raise CapacityError(
            f"{more} more workers need {gib(more * each)} of memory, each {gib(each)} as those that run; "
            f"{gib(max(0, usable))} are usable"
        )


def emptiest(devices: Sequence[str], started: Sequence[str]) -> str:
    """The device of the command line that has fewest workers."""
    used = Counter(devices)
    return min(dict.fromkeys(started), key=lambda device: used[device])


def place(device: str) -> str:
    """Where a worker of this setting runs: `cpu` or a numbered GPU."""
    if device == "auto":
        device = "cuda" if gpu_count() else "cpu"
    return "cuda:0" if device == "cuda" else device


def gpu_count() -> int:
    """GPUs that a process started here sees; 0 also where the driver shows no device files."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in Path("/dev").glob("nvidia*"))
    return there if visible is None else min(there, len([name for name in visible.split(",") if name.strip()]))


def _worker_bytes() -> list[int]:
    """Resident memory of every process that this one started."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page)
            except OSError:  # it has just ended
                continue
    return sizes
