"""The latest progress of each running job, and the waiting streams that want to hear of it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from h3serve.service.jobs.job import Job, NewJob


@dataclass(frozen=True)
class Snapshot:
    """Where a running job stands; `seconds_left` is None while nobody can know."""

    stage: str
    step: int
    steps: int
    seconds_left: float | None


class ProgressBoard:
    """Written by the watching threads, read by the routes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[str, Snapshot] = {}
        self._bells: defaultdict[_Topic, set[Bell]] = defaultdict(set)

    def get(self, job_id: str) -> Snapshot | None:
        return self._latest.get(job_id)

    def update(self, job: Job, snapshot: Snapshot) -> None:
        self._latest[job.id] = snapshot
        self.ring(job)

    def drop(self, job: Job) -> None:
        """The job does not run any more."""
        self._latest.pop(job.id, None)
        self.ring(job)

    def ring(self, job: NewJob) -> None:
        """Tell every listener that something about the job changed."""
        with self._lock:
            bells = [
                bell for topic in (_Topic(id=job.id), _Topic(owner=job.owner)) for bell in self._bells.get(topic, ())
            ]
        for bell in bells:
            bell.ring(job.id)

    def listen(self, job_id: str) -> AbstractContextManager[Bell]:
        """A bell that rings at each change of one job."""
        return self._listen(_Topic(id=job_id))

    def listen_all(self, owner: str) -> AbstractContextManager[Bell]:
        """A bell that rings at each change of any of an owner's jobs."""
        return self._listen(_Topic(owner=owner))

    @contextmanager
    def _listen(self, topic: _Topic) -> Iterator[Bell]:
        bell = Bell()
        with self._lock:
            self._bells[topic].add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._bells[topic].discard(bell)
                if not self._bells[topic]:
                    del self._bells[topic]


@dataclass(frozen=True)
class _Topic:
    """What a listener wants to hear of: one job, or all of an owner."""

    id: str | None = None
    owner: str | None = None


class Bell:
    """Wakes one listener of the event loop from any thread, and remembers for which jobs."""

    def __init__(self) -> None:
        self._rung, self._changed = asyncio.Event(), dict[str, None]()
        self._loop = asyncio.get_running_loop()

    def ring(self, job_id: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, job_id)

    def take(self) -> list[str]:
        """The jobs that changed since the last call, in that order."""
        self._rung.clear()
        changed = list(self._changed)
        self._changed.clear()
        return changed

    async def wait(self, seconds: float) -> bool:
        """Whether it has rung, waiting for up to `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)
        return self._rung.is_set()

    def _note(self, job_id: str) -> None:
        self._changed[job_id] = None
        self._rung.set()
