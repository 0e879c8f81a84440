"""Weight updates over all workers: every one takes it, or none does; jobs wait in the queue meanwhile.

A slot keeps what waits for its worker, and what a new worker has to take before its first job.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json
from h3serve.service.workers.messages import Updated, UpdateRefused, UpdateWeights
from h3serve.service.workers.watchdog import Watchdog, WorkerLost

log = logging.getLogger("h3serve.supervisor")
_RETRY_S = 30


class Taker(Protocol):
    """A slot."""

    name: str
    updates: SlotUpdates

    def is_alive(self) -> bool: ...


class WeightUpdates:
    """One update at a time."""

    def __init__(self, takers: Callable[[], Sequence[Taker]]) -> None:
        """`takers` are those that there are now."""
        self._takers, self._busy = takers, threading.Lock()
        self.made: list[Json] = []

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def make(self, update: UpdateWeights) -> Json:
        """Made on every worker; what each of them has dropped with the old weights.

        Refusal 409 while another one is under way, 422 with the reason if a worker refuses it, 503 if one is lost:
        then all have the weights that they had before.
        """
        with self.kept_out():
            takers = self._takers()
            if len(takers) > 1:  # what one of them refuses is made by none
                _everywhere(takers, replace(update, only_check=True))
            ends = _everywhere(takers, update)
        workers = [{"worker": t.name, **end.report} for t, end in zip(takers, ends, strict=True)]
        done = {"id": update.update_id, "partition": update.partition, "made_at": int(time.time()), "workers": workers}
        self.made.append(done)
        log.info("weights updated", extra={"update": update.update_id, "partition": update.partition})
        return done

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        """No update is made meanwhile, and workers stay the same during one; Refusal 409 if one is under way."""
        if not self._busy.acquire(blocking=False):
            raise Refusal(409, "another weight update, or a change of the workers, is under way")
        try:
            yield
        finally:
            self._busy.release()


def _everywhere(takers: Sequence[Taker], update: UpdateWeights) -> list[Updated]:
    under_way = [taker.updates.put(update) for taker in takers]
    ends = [_end_of(*pair) for pair in zip(takers, under_way, strict=True)]
    refused = next((end for end in ends if isinstance(end, UpdateRefused)), None)
    if refused is None:
        return [end for end in ends if isinstance(end, Updated)]
    for taker, end in zip(takers, ends, strict=True):
        if isinstance(end, Updated) and not update.only_check:
            taker.updates.take_back()
    if refused.leaves:
        kept = f"{refused.message}; the weights are those from before"
        raise Refusal(503, kept, code="update_failed", retry_s=_RETRY_S)
    raise Refusal(422, refused.message, code="update_refused")


def _end_of(taker: Taker, future: Future[End]) -> End:
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if not taker.is_alive() and not future.done():
                return UpdateRefused("", STOPPING, leaves=True)


LOOK_S = 0.1
STOPPING = "the server is stopping"
End = Updated | UpdateRefused


class SlotUpdates:
    """Put in from any thread; taken out by the slot's between two jobs."""

    def __init__(self, *, wake: threading.Event, limit_s: float, is_over: Callable[[], bool]) -> None:
        """`wake` rouses the slot; a worker that takes longer than `limit_s`, or until `is_over`, is ended."""
        self._wake, self._limit_s, self._is_over = wake, limit_s, is_over
        self._waiting: queue.SimpleQueue[tuple[UpdateWeights, Future[End]]] = queue.SimpleQueue()
        self._made: tuple[UpdateWeights, ...] = ()
        self._before: tuple[UpdateWeights, ...] = ()  # the last one
        self.renew = threading.Event()  # the worker has an update that was taken back

    def put(self, update: UpdateWeights) -> Future[End]:
        """How it ends; the future never fails."""
        future: Future[End] = Future()
        self._waiting.put((update, future))
        self._wake.set()
        return future

    def take_back(self) -> None:
        """Go on with a worker that has not made the last update."""
        self._made = self._before
        self.renew.set()
        self._wake.set()

    def inherit(self, other: SlotUpdates) -> None:
        """A new slot's first worker makes what the others have made."""
        self._made = self._before = other._made

    def take(self, watchdog: Watchdog) -> bool:
        """Make all that wait; False when the worker leaves. Raises WorkerLost."""
        while not self._waiting.empty():
            update, future = self._waiting.get()
            try:
                end = self._exchange(watchdog, update)
            except Exception as error:
                why = str(error) if isinstance(error, WorkerLost) else "internal error"
                future.set_result(UpdateRefused(update.update_id, why, leaves=True))
                raise
            if isinstance(end, Updated) and not update.only_check:
                self._remember(update)
            future.set_result(end)
            if isinstance(end, UpdateRefused) and end.leaves:
                return False
        return True

    def repeat(self, watchdog: Watchdog) -> str | None:
        """Make all that were made, on a new worker; why that cannot be. Raises WorkerLost."""
        self.renew.clear()
        for update in self._made:
            if isinstance(end := self._exchange(watchdog, update), UpdateRefused):
                return f"the updated weights cannot be had again: {end.message}"
        return None

    def refuse_all(self) -> None:
        """The slot ends."""
        while not self._waiting.empty():
            update, future = self._waiting.get()
            future.set_result(UpdateRefused(update.update_id, STOPPING, leaves=True))

    def _remember(self, update: UpdateWeights) -> None:
        """A whole checkpoint takes the place of whatever its partition had before."""
        kept = [m for m in self._made if update.tensors is not None or m.partition != update.partition]
        self._before, self._made = self._made, (*kept, update)

    def _exchange(self, watchdog: Watchdog, update: UpdateWeights) -> End:
        watchdog.send(update)
        deadline = time.monotonic() + self._limit_s
        while True:
            message = watchdog.receive(LOOK_S)
            if isinstance(message, Updated | UpdateRefused) and message.update_id == update.update_id:
                return message
            if self._is_over() or time.monotonic() > deadline:
                watchdog.worker.end()
                late = f"the new weights were not there within {self._limit_s:g} s"
                raise WorkerLost(STOPPING if self._is_over() else late)
