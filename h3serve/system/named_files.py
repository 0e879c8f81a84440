"""Files of one kind in a folder, by names that cannot lead out of it, and the hashes of what is in them."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

_hashes: dict[tuple[str, int, int, int], str] = {}  # path, inode, size, time of change -> SHA-256
_lock = threading.Lock()


def named_files(folder: Path, suffix: str) -> dict[str, Path]:
    """Returns the files under `folder` that end with `suffix`: their paths in it without the suffix, sorted.

    Nothing hidden; links to files count, whoever may write there decides. OSError if the folder cannot be read.
    """
    root, found = folder.resolve(strict=True), dict[str, Path]()
    for path in sorted(root.rglob(f"*{suffix}")):
        inside = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            found[inside.as_posix().removesuffix(suffix)] = path
    return found


def state_of(path: Path) -> tuple[str, int, int, int]:
    """Returns what changes when a file is written again: its path, inode, size and time of change. OSError."""
    stat = path.stat()
    return str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns


def sha256_of(path: Path) -> str:
    """Returns the hash of a file's bytes in hex, read once for each state that the file is seen in. OSError."""
    state = state_of(path)
    with _lock:
        if state not in _hashes:
            with path.open("rb") as file:
                _hashes[state] = hashlib.file_digest(file, "sha256").hexdigest()
        return _hashes[state]
