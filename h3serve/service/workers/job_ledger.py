"""What a slot writes down: claims and ends of jobs, in the store, the metrics and the log.

A database that is locked, full or away does not lose an end: the write is repeated until it succeeds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from h3serve.service.jobs.claim import claim
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.database import REFUSALS
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.live_progress import ProgressBoard
from h3serve.service.jobs.ownership import Taken
from h3serve.service.jobs.retry import settle, settle_lost
from h3serve.service.prometheus_metrics import Metrics

log = logging.getLogger("h3serve.jobs")
T = TypeVar("T")
_RETRY_S = 1.0


class Ledger:
    """Shared by every slot. `max_running` bounds the jobs an API key may run at once."""

    def __init__(
        self,
        store: JobStore,
        folder: DataFolder,
        metrics: Metrics,
        *,
        max_running: Mapping[str, int] | None = None,
    ) -> None:
        self.store, self.folder, self.metrics = store, folder, metrics
        self.board = ProgressBoard()
        self.stop = threading.Event()  # set last: give up writing
        self._taking, self._is_unsure = threading.Lock(), False
        self._running: set[tuple[str, int]] = set()  # jobs and attempts that slots have
        self._max_running = dict(max_running or {})

    def claim(self, tasks: Collection[str]) -> Job | None:
        """The next job; None when there is none, or the database is not this server's now."""
        if not self.store.is_owned:
            return None
        with self._taking:
            job = self._insist(lambda: self._take(tasks))
            if job is not None:
                self._running.add((job.id, job.attempts))
        if job is not None:
            self.board.ring(job)
            self.metrics.queue_wait.observe(waited_s(job))
        return job

    def _take(self, tasks: Collection[str]) -> Job | None:
        """Claim a job. One that was claimed by a write whose answer was lost goes back first: no slot has it."""
        if self._is_unsure:
            for stray in self.store.in_state(State.IN_PROGRESS):
                if (stray.id, stray.attempts) not in self._running:
                    settle_lost(self.store, self.folder, stray, "no worker had it", counts=False)
        self._is_unsure = True
        job = claim(self.store, tasks, self._max_running)
        self._is_unsure = False
        return job

    def is_cancel_requested(self, job: Job) -> bool:
        """Asked of the store, where another thread may have written it meanwhile."""
        row = self._insist(lambda: self.store.row(job.id))
        return row is not None and row.cancel_requested

    def settle(self, job: Job, outcome: Outcome) -> None:
        """The job ended here."""
        after = self._insist(lambda: settle(self.store, self.folder, job, outcome))
        self._note(job, after)

    def lost(self, job: Job, cause: str) -> None:
        """The job's worker vanished: complete, retry or fail it."""
        log.warning("job lost its worker", extra={"job": job.id, "cause": cause})
        self._note(job, self._insist(lambda: settle_lost(self.store, self.folder, job, cause)))

    def give_back(self, job: Job) -> None:
        """The server stops: a job that is not whole yet waits for the next one, its attempt not spent."""
        log.info("job given back", extra={"job": job.id})
        why = "the server stopped"
        self._note(job, self._insist(lambda: settle_lost(self.store, self.folder, job, why, counts=False)))

    def _note(self, job: Job, after: Job | None) -> None:
        """One summary line per end of a job."""
        self._running.discard((job.id, job.attempts))
        self.board.drop(job)
        if after is None or not after.is_final:
            return
        self.metrics.ended(after)
        log.info(
            f"job {after.state}",
            extra={
                "job": after.id,
                "task": after.task,
                "attempts": after.attempts,
                "waited_s": round(waited_s(job), 3),
                "ran_s": round((after.finished_at or 0.0) - (after.started_at or 0.0), 3),
                "bytes": after.bytes,
                "error": after.error,
                "stats": after.stats,
            },
        )

    def _insist(self, write: Callable[[], T]) -> T | None:
        while True:
            try:
                return write()
            except Taken as taken:  # whoever owns it has settled what ran here
                log.error(str(taken))
                return None
            except REFUSALS as error:
                cause = str(getattr(error, "orig", error))
                log.error("the job database cannot be written", extra={"cause": cause})
                if self.stop.wait(_RETRY_S):
                    return None


def waited_s(job: Job) -> float:
    """From creation to the start of this attempt."""
    return max(0.0, (job.started_at or time.time()) - job.created_at)
