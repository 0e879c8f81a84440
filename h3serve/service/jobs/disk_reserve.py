"""Room that is kept on the disk for the day it is full: then jobs can still be ended, deleted and given up."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path

log = logging.getLogger("h3serve.folder")
_BYTES = 64 * 2**20
_SHARE = 50  # at most this part of the disk
_AGAIN = 4  # times its size must be free before it is taken again


class Reserve:
    """A file at `path` whose space is given up when it is needed, and taken again when there is room."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def take(self) -> None:
        """Take the space if it is not held and the disk is not nearly full."""
        with self._lock:
            disk = shutil.disk_usage(self._path.parent)
            size = min(_BYTES, disk.total // _SHARE)
            if self._path.exists() or disk.free < _AGAIN * size:
                return
            part = self._path.with_name(f"{self._path.name}.part")
            try:
                with part.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, size)
                part.rename(self._path)
            except OSError as error:
                part.unlink(missing_ok=True)
                log.warning("no room is kept for a full disk", extra={"cause": error.strerror})

    def release(self) -> bool:
        """Give the space up; False when there is none."""
        with self._lock:
            try:
                self._path.unlink()
            except OSError:
                return False
        log.warning("the disk is full: the room that was kept is used to end and to remove jobs")
        return True
