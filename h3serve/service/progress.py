"""The latest progress of each running job, and the waiting streams that want to hear of it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
        self._bells: defaultdict[str, set[_Bell]] = defaultdict(set)

    def get(self, job_id: str) -> Snapshot | None:
        return self._latest.get(job_id)

    def update(self, job_id: str, snapshot: Snapshot) -> None:
        self._latest[job_id] = snapshot
        self.ring(job_id)

    def drop(self, job_id: str) -> None:
        """The job does not run any more."""
        self._latest.pop(job_id, None)
        self.ring(job_id)

    def ring(self, job_id: str) -> None:
        """Tell every listener that something about the job changed."""
        with self._lock:
            bells = list(self._bells.get(job_id, ()))
        for bell in bells:
            bell.ring()

    @contextmanager
    def listen(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set at each change; the listener clears it."""
        bell = _Bell()
        with self._lock:
            self._bells[job_id].add(bell)
        try:
            yield bell.event
        finally:
            with self._lock:
                self._bells[job_id].discard(bell)
                if not self._bells[job_id]:
                    del self._bells[job_id]


class _Bell:
    """An asyncio event that other threads may set."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.event.set)
