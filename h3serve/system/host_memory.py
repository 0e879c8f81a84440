"""Host memory within this process's cgroup, and how often it ran out."""

from __future__ import annotations

from pathlib import Path

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroup v2, v1
_USED = ("memory.current", "memory.usage_in_bytes")


def host_memory(root: Path = Path("/")) -> tuple[int, int]:
    """Returns (bytes, free bytes) that this process can have: the machine's, or less if its cgroup says so.

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


def oom_kills(root: Path = Path("/")) -> int:
    """Returns how many processes of this container the kernel has killed for memory; 0 if unknown."""
    try:
        lines = (root / "sys/fs/cgroup/memory.events").read_text().splitlines()
        return int(dict(line.split() for line in lines).get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def _cgroups(root: Path) -> list[Path]:
    """Returns the folders of this process's memory cgroup and the ones around it."""
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
    """Returns the bytes of the group's page cache that can be dropped."""
    file = folder / "memory.stat"
    if not file.is_file():
        return 0
    stats = dict(line.split() for line in file.read_text().splitlines())
    return int(stats.get("inactive_file", 0)) + int(stats.get("active_file", 0))
