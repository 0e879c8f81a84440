"""How long a job will take here, judged by the jobs that this server finished before."""

from __future__ import annotations

import asyncio
import math
import time
from statistics import median

from anyio import to_thread

from h3serve.service.jobs.job import Json, State
from h3serve.service.jobs.job_store import JobStore

_MAX_RETRY_S = 600
_LOOK_S = 1.0
_HISTORY = 200  # finished jobs that are looked at
_ALIKE = 8.0  # times as much work, or as little: a video of 15 s is 7 of 5 s
_NEAREST = 5


def seconds_for(store: JobStore, plan: Json) -> float | None:
    """Seconds a plan would run, by the finished jobs whose work is nearest to its own; None if none is near.

    A much smaller video says nothing of it: most of its time went into what every video costs.
    """
    wanted = float(plan["petaflops"])
    alike = [(s, p) for s, p in store.recent_work(_HISTORY) if wanted / _ALIKE <= p <= wanted * _ALIKE]
    nearest = sorted(alike, key=lambda work: abs(math.log(work[1] / wanted)))[:_NEAREST]
    return round(median(s * wanted / p for s, p in nearest), 1) if nearest else None


class Patience:
    """Seconds until one place in a full queue should be free; looked up once a second, however many ask."""

    def __init__(self) -> None:
        self._lock, self._seconds, self._looked_at = asyncio.Lock(), 0, -math.inf

    async def seconds(self, store: JobStore, workers: int) -> int:
        async with self._lock:
            if time.monotonic() - self._looked_at > _LOOK_S:
                self._seconds = await to_thread.run_sync(_retry_after, store, workers)
                self._looked_at = time.monotonic()
        return self._seconds


def _retry_after(store: JobStore, workers: int) -> int:
    work = store.recent_work()
    seconds = sum(s for s, _ in work) / len(work) if work else 30.0
    running = store.counts()[State.IN_PROGRESS]
    return max(1, min(_MAX_RETRY_S, math.ceil(seconds / max(1, running, workers))))
