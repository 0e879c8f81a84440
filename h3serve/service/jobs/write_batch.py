"""Writes that arrive together share one transaction, and with it one wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from h3serve.core.errors import H3Error

T = TypeVar("T")
_Entry = tuple[Callable[[Connection], Any], Future[Any]]


class Batch(threading.Thread):
    """The thread that writes: whatever came while one transaction was under way is in the next.

    `writing()` opens a transaction. A write that refuses (an H3Error) must do so before it changes
    anything; any other failure is everybody's, and nothing of the batch is kept.
    """

    def __init__(self, writing: Callable[[], AbstractContextManager[Connection]]) -> None:
        super().__init__(name="batch", daemon=True)
        self._writing = writing
        self._todo: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self.start()

    def submit(self, function: Callable[[Connection], T]) -> Future[T]:
        """Has the result of `function` once it is safe on the disk, or what it raised."""
        future: Future[T] = Future()
        self._todo.put((function, future))
        return future

    def close(self) -> None:
        """Finish what waits and end."""
        self._todo.put(None)
        self.join()

    def run(self) -> None:
        is_open = True
        while is_open:
            entries = [self._todo.get()]
            while not self._todo.empty():
                entries.append(self._todo.get())
            is_open = None not in entries
            # From here on nobody can cancel a write: it is made, and its caller told.
            taken = [e for e in entries if e is not None and e[1].set_running_or_notify_cancel()]
            if taken:
                self._write_all(taken)

    def _write_all(self, entries: list[_Entry]) -> None:
        answers: list[Callable[[], None]] = []
        try:
            with self._writing() as connection:
                answers = [_attempt(function, future, connection) for function, future in entries]
        except Exception as error:
            for _, future in entries:
                future.set_exception(error)
            return
        for answer in answers:
            answer()


def _attempt(function: Callable[[Connection], T], future: Future[T], connection: Connection) -> Callable[[], None]:
    """Run one write; what to tell its caller once all are on the disk."""
    try:
        return partial(future.set_result, function(connection))
    except H3Error as refusal:
        return partial(future.set_exception, refusal)
