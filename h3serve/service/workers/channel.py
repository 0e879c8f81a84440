"""Messages over a socket: one JSON object a line. Any thread may send; one thread receives."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict

from h3serve.service.workers.messages import KINDS, Message

_CHUNK = 1 << 16


class Closed(Exception):
    """The other side is gone."""


class Busy(Exception):
    """The other side is there and does not read."""


class Channel:
    """One end of a connected stream socket, which it owns."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._pending = bytearray()
        self._send_lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, timeout_s: float | None = None) -> None:
        """Raises Closed when the other side is gone, Busy when it has not taken all within `timeout_s`.

        After Busy half a message is under way: the channel is of no use any more.
        """
        left = memoryview(encode(message))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self._send_lock:
                while left:
                    if not self._await(select.POLLOUT, None if deadline is None else deadline - time.monotonic()):
                        raise Busy
                    with suppress(BlockingIOError):
                        left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
        except (OSError, ValueError) as error:
            raise Closed from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None after `timeout_s`; raises Closed at the end of the stream."""
        while (end := self._pending.find(b"\n")) < 0:
            try:
                if not self._await(select.POLLIN, timeout_s):
                    return None
                chunk = self._socket.recv(_CHUNK)
            except (OSError, ValueError) as error:
                raise Closed from error
            if not chunk:
                raise Closed
            self._pending += chunk
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return decode(line)

    def _await(self, event: int, timeout_s: float | None) -> bool:
        """Whether it happened; by `poll`, since `select` knows no descriptor above 1023."""
        waiting = select.poll()
        waiting.register(self._socket, event)
        return bool(waiting.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def encode(message: Message) -> bytes:
    """One line of JSON; the kind travels beside the fields."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`; an unknown kind or field is an error, never dropped."""
    kind, fields = json.loads(line)
    return KINDS[kind](**fields)
