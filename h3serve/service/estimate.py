"""How long a job will take here, judged by the jobs that this server finished before."""

from __future__ import annotations

import math

from h3serve.service.job import Json
from h3serve.service.moves import State
from h3serve.service.store import JobStore

_MAX_RETRY_S = 600


def seconds_for(store: JobStore, plan: Json) -> float | None:
    """Seconds a plan would run: recent seconds per petaflop times its petaflops; None: no history."""
    work = [(s, p) for s, p in store.recent_work() if p > 0]
    if not work:
        return None
    rate = sum(s for s, _ in work) / sum(p for _, p in work)
    return round(rate * float(plan["petaflops"]), 1)


def retry_after(store: JobStore, workers: int) -> int:
    """Seconds until one place in a full queue should be free."""
    work = store.recent_work()
    seconds = sum(s for s, _ in work) / len(work) if work else 30.0
    running = store.counts()[State.IN_PROGRESS]
    return max(1, min(_MAX_RETRY_S, math.ceil(seconds / max(1, running, workers))))
