"""Files that are whole or not there, files that survive power loss, and caches of files within a bound."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(target: Path, *, mode: int | None = None, sync: bool = True) -> Iterator[Path]:
    """Yields a name beside `target` to write a file or folder under; it becomes `target` on success only.

    After any exception (cancellation and Ctrl-C included) nothing of it remains and an older `target` is untouched.
    A file gets the rights `mode`, those of any new file of this user if None, and is on the disk before it has its
    name; without `sync` that is left to the system. OSError for a failing disk.
    """
    final, part = target.absolute(), None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{final.name[:80]}.", suffix=".part", dir=final.parent)
        part = Path(name)
        os.close(handle)
        yield part
        if part.is_file():
            part.chmod(_new_file_mode() if mode is None else mode)  # mkstemp makes private files
            if sync:
                flush(part)
        part.replace(final)
    finally:
        if part is not None and part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        elif part is not None:
            part.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Makes a file or folder survive power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def trim(files: Iterable[Path], limit_bytes: int, *, keep: Path | None = None) -> None:
    """Removes the least recently used of `files` (by modification time) until all have `limit_bytes` at most.

    `keep` stays, whatever its age. Other processes may remove files meanwhile.
    """
    found: list[tuple[float, int, Path]] = []
    for path in files:
        with suppress(FileNotFoundError):
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total > limit_bytes and path != keep:
            total -= size
            path.unlink(missing_ok=True)


def _new_file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
