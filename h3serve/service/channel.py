"""Messages over a socket: one JSON object a line. Any thread may send; one thread receives."""

from __future__ import annotations

import json
import select
import socket
import threading
from dataclasses import asdict

from h3serve.service.messages import KINDS, Message

_CHUNK = 1 << 16


class Closed(Exception):
    """The other side is gone."""


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

    def send(self, message: Message) -> None:
        """Raises Closed when the other side is gone."""
        line = encode(message)
        try:
            with self._send_lock:
                self._socket.sendall(line)
        except OSError as error:
            raise Closed from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None after `timeout_s`; raises Closed at the end of the stream."""
        while (end := self._pending.find(b"\n")) < 0:
            try:
                if not select.select([self._socket], [], [], timeout_s)[0]:
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


def encode(message: Message) -> bytes:
    """One line of JSON; the kind travels beside the fields."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`; an unknown kind or field is an error, never dropped."""
    kind, fields = json.loads(line)
    return KINDS[kind](**fields)
