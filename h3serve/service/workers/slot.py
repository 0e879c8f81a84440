"""The life of one worker: start it, give it jobs, watch it, replace it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

from h3serve.core.estimate_memory import Capacity
from h3serve.core.estimate_work import ModelSize
from h3serve.core.geometry import SizeRules
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.live_progress import Snapshot
from h3serve.service.service_settings import WorkerRules
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.messages import (
    Cancel,
    Done,
    Failed,
    JobProgress,
    Load,
    Loaded,
    LoadFailed,
    RunJob,
    Stop,
    Stopped,
)
from h3serve.service.workers.watchdog import Watchdog, WorkerLost
from h3serve.service.workers.worker_process import COMMAND, WorkerProcess
from h3serve.service.workers.worker_updates import SlotUpdates

log = logging.getLogger("h3serve.supervisor")
_LOOK_S = 0.1  # how often a quiet slot looks at its flags
_REST_S = 1.0  # how often it asks for work nobody announced
_EXIT_S = 10.0  # a worker that said it leaves may take this long


class SlotState(StrEnum):
    """Where a worker stands, as /ready and the metrics show it."""

    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class Slot(threading.Thread):
    """One worker at a time, replaced when it ends.

    `on_fatal` hears why the very first load failed: then the server had better end. After
    `drain` is set the slot takes no job and ends; after `hurry` it gives its job back at once.
    `leaves` is true of a slot that ends while the others stay.
    """

    def __init__(
        self,
        name: str,
        load: Load,
        ledger: Ledger,
        *,
        rules: WorkerRules,
        on_fatal: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.load, self.ledger, self.rules, self.command = load, ledger, rules, command
        self.on_fatal = on_fatal
        self.wake, self.drain, self.hurry = threading.Event(), threading.Event(), threading.Event()
        self.state, self.tasks, self.restarts = SlotState.LOADING, tuple[str, ...](), 0
        self.leaves = False
        self.failure: str | None = None  # why its first load failed
        self.size_rules: SizeRules | None = None
        self.model_size: ModelSize | None = None
        self.capacity: Capacity | None = None
        self.job: Job | None = None
        self._cancel_wanted = threading.Event()
        self.updates = SlotUpdates(wake=self.wake, limit_s=rules.load_s, is_over=self.hurry.is_set)

    def cancel(self, job_id: str) -> None:
        """The job's cancellation is in the store; act on it if it runs here."""
        if self.job is not None and self.job.id == job_id:
            self._cancel_wanted.set()

    def leave(self) -> None:
        """Finish the running job, take no other, end."""
        self.leaves = True
        self.drain.set()
        self.wake.set()

    @property
    def device(self) -> str:
        """Where its workers run."""
        return str(self.load.settings["device"])

    @property
    def is_ready(self) -> bool:
        """Its worker is loaded and somebody watches it."""
        return self.is_alive() and self.state in (SlotState.IDLE, SlotState.BUSY)

    @property
    def has_died(self) -> bool:
        """It ended though nobody told it to."""
        return self.ident is not None and not self.is_alive() and not self.drain.is_set()

    def run(self) -> None:
        delay = self.rules.restart_s
        while not self.drain.is_set():
            began = time.monotonic()
            try:
                cause = self._one_worker()
            except Exception:  # ours, not the worker's: a slot must outlive it
                log.exception("the supervisor failed", extra={"worker": self.name})
                cause = "internal error"
            if cause is None or self.drain.is_set():
                break
            if time.monotonic() - began > self.rules.restart_max_s:
                delay = self.rules.restart_s
            self._note_restart(cause)
            self.drain.wait(delay)
            delay = min(2 * delay, self.rules.restart_max_s)
        self.state = SlotState.STOPPED
        self.updates.refuse_all()

    def _note_restart(self, cause: str) -> None:
        self.state = SlotState.RESTARTING
        self.restarts += 1
        log.warning("worker replaced", extra={"worker": self.name, "cause": cause})
        self.ledger.metrics.restarts.inc()

    def _one_worker(self) -> str | None:
        """Use one worker until it ends; the reason why it must be replaced, None for no more."""
        self.state = SlotState.LOADING
        try:
            worker = WorkerProcess(self.load, self.command)
        except OSError as error:
            return f"no worker could be started: {error.strerror}"
        try:
            return self._use(worker, Watchdog(worker, self.rules))
        finally:
            self.state = SlotState.RESTARTING
            worker.end()
            self._await_exit(worker)

    def _await_exit(self, worker: WorkerProcess) -> None:
        """A killed process keeps its memory until it has ended: the next worker would not find it."""
        until = time.monotonic() + self.rules.exit_s
        while not worker.is_gone and not self.drain.wait(_LOOK_S):
            if time.monotonic() > until:
                log.error("a killed worker does not end", extra={"worker": self.name, "pid": worker.pid})
                return

    def _use(self, worker: WorkerProcess, watchdog: Watchdog) -> str | None:
        try:
            loaded = self._await_load(watchdog)
            if isinstance(loaded, LoadFailed):
                return self._load_failed(loaded.message)
            if loaded is None:
                return None
            if (cause := self.updates.repeat(watchdog)) is not None:
                return cause
            self.tasks = tuple(loaded.tasks)
            self.size_rules = SizeRules(**loaded.size_rules)
            self.model_size = ModelSize(**loaded.model_size)
            self.capacity = Capacity(**loaded.capacity) if loaded.capacity else None
            self.ledger.metrics.loaded(loaded.stats)
            log.info("ready", extra={"worker": self.name, "pid": worker.pid, "stats": loaded.stats})
            return self._serve(worker, watchdog)
        except WorkerLost as lost:
            if self.state is SlotState.LOADING:
                return self._load_failed(str(lost))
            return str(lost)

    def _load_failed(self, cause: str) -> str:
        if not self.tasks:  # it never worked: the reason is a setting, not an accident
            self.failure, self.leaves = cause, True
            self.on_fatal(f"the model cannot be loaded: {cause}")
            self.drain.set()
        return cause

    def _await_load(self, watchdog: Watchdog) -> Loaded | LoadFailed | None:
        deadline = time.monotonic() + self.rules.load_s
        while not self.drain.is_set():
            message = watchdog.receive(_LOOK_S)
            if isinstance(message, Loaded | LoadFailed):
                return message
            if time.monotonic() > deadline:
                raise WorkerLost(f"the model did not load within {self.rules.load_s:g} s")
        return None

    def _serve(self, worker: WorkerProcess, watchdog: Watchdog) -> str | None:
        while not self.drain.is_set():
            self.state = SlotState.IDLE
            self.wake.clear()
            self._cancel_wanted.clear()
            if not self.updates.take(watchdog):
                return worker.end(_EXIT_S)
            if self.updates.renew.is_set():
                self._let_go(worker, watchdog)
                return "its weight update was taken back"
            self.job = self.ledger.claim(self.tasks)
            if self.job is None:
                self._rest(watchdog)
            elif not self._work(watchdog, self.job):
                return worker.end(_EXIT_S)
        self._let_go(worker, watchdog)
        return None

    def _let_go(self, worker: WorkerProcess, watchdog: Watchdog) -> None:
        watchdog.send(Stop())
        worker.end(_EXIT_S)

    def _rest(self, watchdog: Watchdog) -> None:
        """Wait for work while listening to the worker."""
        until = time.monotonic() + _REST_S
        while time.monotonic() < until and not self.wake.wait(_LOOK_S):
            while watchdog.receive(0) is not None:
                pass

    def _work(self, watchdog: Watchdog, job: Job) -> bool:
        """See one job to its end, whatever happens; False when the worker must be replaced."""
        self.state = SlotState.BUSY
        watchdog.job_begins()
        try:
            return self._watch(watchdog, job)
        except Exception as error:
            self.ledger.lost(job, str(error) if isinstance(error, WorkerLost) else "internal error")
            raise
        finally:
            watchdog.job_ended()
            self.job = None

    def _watch(self, watchdog: Watchdog, job: Job) -> bool:
        folder = self.ledger.folder
        inputs, attempt = folder.inputs(job.id), folder.attempt(job)
        watchdog.send(RunJob(job.id, job.attempts, job.request, str(inputs), str(attempt)))
        if self.ledger.is_cancel_requested(job):  # between the claim and `self.job`
            self._cancel_wanted.set()
        cancel_by: float | None = None
        while True:
            if cancel_by is None and self._cancel_wanted.is_set():
                watchdog.send(Cancel(job.id))
                cancel_by = time.monotonic() + self.rules.cancel_s
            if self.hurry.is_set():
                watchdog.worker.end()
                self.ledger.give_back(job)
                return False
            if cancel_by is not None and time.monotonic() > cancel_by:
                watchdog.worker.end()
                self.ledger.settle(job, Outcome(State.CANCELLED))
                return False
            if (end := self._hear(watchdog, job)) is not None:
                return self._ended(job, end)

    def _hear(self, watchdog: Watchdog, job: Job) -> Done | Failed | Stopped | None:
        """How the job ended, if it did; shows its progress.

        A message about another job or attempt is late and means nothing.
        """
        message = watchdog.receive(_LOOK_S)
        if not isinstance(message, JobProgress | Done | Failed | Stopped):
            return None
        if (message.job_id, message.attempt) != (job.id, job.attempts):
            return None
        if isinstance(message, JobProgress):
            step = Snapshot(message.stage, message.step, message.steps, message.seconds_left)
            self.ledger.board.update(job, step)
            return None
        return message

    def _ended(self, job: Job, end: Done | Failed | Stopped) -> bool:
        """Write the end down; False when the worker leaves."""
        if isinstance(end, Done):
            self.ledger.settle(job, Outcome(State.COMPLETED, stats=end.stats, files=end.files))
        elif isinstance(end, Failed) and end.again:
            self.ledger.lost(job, end.message)
        elif isinstance(end, Failed):
            self.ledger.settle(job, Outcome(State.FAILED, end.code, end.message))
        else:
            self.ledger.settle(job, Outcome(State.CANCELLED))
        return not (isinstance(end, Failed) and end.leaves)
