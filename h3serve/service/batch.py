"""Writes that arrive together share one transaction, and with it one wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from h3serve.core.errors import H3Error

T = TypeVar("T")


@dataclass
class _Entry(Generic[T]):
    write: Callable[[Connection], T]
    result: T | None = None
    error: BaseException | None = None
    is_done: bool = False


class Batch:
    """Collects writes while one transaction is under way and runs them all in the next.

    `writing()` opens a transaction, one at a time. A write that refuses (an H3Error) must do so
    before it changes anything; any other failure is everybody's, and nothing of the batch is kept.
    """

    def __init__(self, writing: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._writing = writing
        self._turn, self._list = threading.Lock(), threading.Lock()
        self._pending: list[_Entry[Any]] = []

    def run(self, write: Callable[[Connection], T]) -> T:
        """The result of `write`, once it is safe on the disk; raises what it raised."""
        entry = _Entry(write)
        with self._list:
            self._pending.append(entry)
        with self._turn:
            if not entry.is_done:  # nobody took it along: run everything that waits by now
                self._run_all()
        if entry.error is not None:
            raise entry.error
        return entry.result  # type: ignore[return-value]

    def _run_all(self) -> None:
        with self._list:
            entries, self._pending = self._pending, []
        try:
            with self._writing() as connection:
                for entry in entries:
                    _attempt(entry, connection)
        except Exception as error:
            for entry in entries:
                entry.error = error
        finally:
            for entry in entries:
                entry.is_done = True


def _attempt(entry: _Entry[Any], connection: Connection) -> None:
    try:
        entry.result = entry.write(connection)
    except H3Error as refusal:
        entry.error = refusal
