"""Listens to one worker and says when it is lost: ended, silent, or answering without advancing."""

from __future__ import annotations

import logging
import time

from h3serve.core.errors import WorkerError
from h3serve.service.service_settings import WorkerRules
from h3serve.service.workers.channel import Busy, Closed
from h3serve.service.workers.messages import Beat, Message
from h3serve.service.workers.worker_process import WorkerProcess

log = logging.getLogger("h3serve.supervisor")
_EXIT_S = 5.0  # between the end of the stream and the exit code


class WorkerLost(WorkerError):
    """The worker is gone or had to be ended; says why in plain words."""


class Watchdog:
    """Reads a worker's messages; keeps the time since its last beat and its last step."""

    def __init__(self, worker: WorkerProcess, rules: WorkerRules) -> None:
        self.worker, self.rules = worker, rules
        self._heard_at = time.monotonic()
        self._began_at: float | None = None  # of the running job
        self._warned = False

    def job_begins(self) -> None:
        """A stall counts from here, whatever earlier beats said."""
        self._began_at, self._warned = time.monotonic(), False

    def job_ended(self) -> None:
        self._began_at = None

    def send(self, message: Message) -> None:
        """Raises WorkerLost when nobody listens any more."""
        try:
            self.worker.channel.send(message, self.rules.silent_s)
        except Closed:
            raise WorkerLost(self.worker.end(_EXIT_S)) from None
        except Busy:
            self._give_up(f"the worker did not read for {self.rules.silent_s:g} s")

    def receive(self, timeout_s: float) -> Message | None:
        """The next message or None; raises WorkerLost when there will be no more."""
        try:
            message = self.worker.channel.receive(timeout_s)
        except Closed:
            raise WorkerLost(self.worker.end(_EXIT_S)) from None
        now = time.monotonic()
        if message is not None:
            self._heard_at = now
        elif now - self._heard_at > self.rules.silent_s:
            self._give_up(f"the worker did not answer for {self.rules.silent_s:g} s")
        if isinstance(message, Beat) and self._began_at is not None:
            self._check_advance(message, now - self._began_at)
        return message

    def _check_advance(self, beat: Beat, job_s: float) -> None:
        idle_s = min(beat.idle_s, job_s)
        if idle_s > self.rules.stalled_s:
            self._give_up(f"the worker made no progress in {beat.stage} for {idle_s:.0f} s")
        if idle_s > self.rules.stalled_s / 10 and not self._warned:
            self._warned = True
            log.warning("no progress", extra={"stage": beat.stage, "idle_s": round(idle_s, 1)})

    def _give_up(self, why: str) -> None:
        self.worker.end()
        raise WorkerLost(why)
