"""Weight updates over all workers: every one takes it, or none does; jobs wait in the queue meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json
from h3serve.service.workers.messages import Update, Updated, UpdateRefused
from h3serve.service.workers.slot_updates import LOOK_S, STOPPING, End, SlotUpdates

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

    def make(self, update: Update) -> Json:
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


def _everywhere(takers: Sequence[Taker], update: Update) -> list[Updated]:
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
