"""The data folder: where a job's files lie, who owns the folder, what a crash left behind.

DATA/lock              held by the one server that owns the folder
DATA/reserve           room that is given up when the disk is full
DATA/jobs.sqlite       the store, unless another database is named
DATA/incoming/ID/      files of a request that is not accepted yet
DATA/jobs/ID/inputs/   the frozen inputs of a job
DATA/jobs/ID/attempt-N the files of one attempt; whole when it holds result.json
DATA/set-aside/TIME/   what lay in jobs/ at a start and the store knew nothing of
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from h3serve.core.errors import H3Error
from h3serve.service.jobs.job import Job, Json
from h3serve.system.disk_files import flush, whole_file

log = logging.getLogger("h3serve.folder")
RESULT = "result.json"


class DataFolder:
    """The folder at `root`, which `open` makes and locks."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.reserve = Reserve(self.root / "reserve")
        self.undo = False  # at `close`, remove the folder if `open` made it
        self._lock: int | None = None
        self._is_new = False

    def open(self) -> None:
        """Raises H3Error when the folder cannot be written or another server has it."""
        self._is_new = not self.root.exists()
        try:
            for folder in (self.root, self.root / "incoming", self.root / "jobs"):
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root):
                pass
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise H3Error(f"the data folder {self.root} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise H3Error(f"another server is using the data folder {self.root}") from error
        self._lock = lock

    def close(self) -> None:
        """Give the folder back."""
        if self._lock is None:
            return
        if self.undo and self._is_new:
            shutil.rmtree(self.root, ignore_errors=True)
        os.close(self._lock)
        self._lock = None

    @property
    def default_url(self) -> str:
        return f"sqlite:///{self.root / 'jobs.sqlite'}"

    def incoming(self, job_id: str) -> Path:
        return self.root / "incoming" / job_id

    def job(self, job_id: str) -> Path:
        return self.root / "jobs" / job_id

    def inputs(self, job_id: str) -> Path:
        return self.job(job_id) / "inputs"

    def attempt(self, job: Job) -> Path:
        return self.job(job.id) / f"attempt-{job.attempts}"

    def content(self, job: Job, variant: str) -> Path | None:
        """The finished file of a variant, or None when the job has none."""
        entry = (job.files or {}).get(variant)
        return None if entry is None else self.attempt(job) / str(entry["name"])

    def accept(self, job_id: str) -> None:
        """Make an incoming request's files the inputs of a job, safe from power loss."""
        incoming, target = self.incoming(job_id), self.job(job_id)
        if not incoming.exists():
            return
        target.mkdir()
        inputs = incoming.rename(self.inputs(job_id))
        for path in (*inputs.iterdir(), inputs, target):
            flush(path)

    def bytes_of(self, job_id: str) -> int:
        """What the files of a job take, inputs included; 0 when there are none."""
        total = 0
        for path in self.job(job_id).rglob("*"):
            with suppress(FileNotFoundError):  # it has just been removed
                total += path.stat().st_size if path.is_file() else 0
        return total

    def remove(self, job_id: str) -> None:
        """Remove every file of an accepted job.

        It is moved first: a crash in the middle then leaves what the next start clears, not what it sets aside.
        """
        going = self.incoming(job_id).with_suffix(".gone")
        try:
            self.job(job_id).rename(going)
        except OSError:  # there is none, or the rest of an earlier one is in the way
            going = self.job(job_id)
        shutil.rmtree(going, ignore_errors=True)

    def remove_incoming(self, job_id: str) -> None:
        """Remove what is left of a request that was refused or has been accepted."""
        shutil.rmtree(self.incoming(job_id), ignore_errors=True)

    def drop_attempts(self, job_id: str, *, keep: Path | None = None) -> None:
        """Remove the attempts of a job, all but `keep`."""
        for folder in self.job(job_id).glob("attempt-*"):
            if folder != keep:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, known: Collection[str]) -> list[Path]:
        """Remove requests that were never accepted; set aside files of jobs that are not `known`.

        Such a job may be of another database than the one at hand (a new, an older or a missing one): its files are
        somebody's videos until a person has looked. Returns where they are now.
        """
        for folder in (self.root / "incoming").iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        unknown = [folder for folder in (self.root / "jobs").iterdir() if folder.name not in known]
        return self._set_aside(sorted(unknown), "the job database does not know these jobs")

    def spare_whole(self, job: Job) -> list[Path]:
        """Set aside finished attempts that the store does not know of, so that none is removed as half done.

        A store that is older than the folder may call a job queued whose video is there.
        """
        current = self.attempt(job) if job.started_at is not None else None
        whole = [a for a in sorted(self.job(job.id).glob("attempt-*")) if a != current and read_result(a) is not None]
        return self._set_aside(whole, "the job database does not know that these were finished")

    def _set_aside(self, folders: list[Path], why: str) -> list[Path]:
        if not folders:
            return []
        target = self.root / "set-aside" / f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{time.time_ns() % 10**9:09}"
        moved = []
        for folder in folders:
            place = target / folder.relative_to(self.root / "jobs")
            place.parent.mkdir(parents=True, exist_ok=True)
            moved.append(folder.rename(place))
        names = [str(folder.relative_to(self.root / "jobs")) for folder in folders]
        log.warning(f"set aside, not removed: {why}", extra={"number": len(names), "jobs": names, "into": str(target)})
        return moved


def read_result(attempt: Path) -> Json | None:
    """What a whole attempt recorded, or None when the attempt is not whole."""
    try:
        result: Json = json.loads((attempt / RESULT).read_bytes())
        sizes = {e["name"]: e["bytes"] for e in result["files"].values()}
        is_whole = all((attempt / name).stat().st_size == n for name, n in sizes.items())
    except (OSError, ValueError, KeyError):
        return None
    return result if is_whole else None


def write_result(attempt: Path, result: Json) -> None:
    """Declare an attempt whole: last and atomically."""
    with whole_file(attempt / RESULT) as part:
        part.write_text(json.dumps(result))
    flush(attempt)


def check_free(folder: Path, least: int) -> None:
    """Raises OSError (no space) when the disk of `folder`, or of what is there above it, has less than `least` free."""
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free < least:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
