"""Connections of the HTTP server: how many there may be, and how long a client may take over each step.

A connection that waits for its client (for a request, the rest of a header or of a body, or for room to send) costs
a file descriptor. When all are taken, the one that has been silent longest makes room for the next; and whoever is
past a deadline is cut off. Both are looked at from one place, once a second.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from h3serve.service.jobs.error_replies import error_reply
from h3serve.service.service_settings import ConnectionLimits

log = logging.getLogger("h3serve.http")
_OWN_DESCRIPTORS = 192  # the database, files that are read or written, pipes of workers, and a round of `accept`
_MOST_DESCRIPTORS = 65_536


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as the system lets this process have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def most_connections(wanted: int, descriptors: int) -> int:
    """`wanted`, or as many as the descriptors leave: at least a few."""
    most = max(8, min(wanted, descriptors - _OWN_DESCRIPTORS))
    if most < wanted:
        log.warning(
            "fewer connections than wanted: raise the limit of open files",
            extra={"connections": most, "wanted": wanted, "open_files": descriptors},
        )
    return most


class Connection(H11Protocol):
    """uvicorn's protocol on h11, with bounds; `limits` is set by `connection_type`."""

    limits: ConnectionLimits
    conn: h11.Connection
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._began = self._heard = time.monotonic()  # of what is being waited for; of the last byte
        self._received = 0  # bytes meanwhile
        self._blocked: float | None = None  # since when there is no room to send
        self._closing: float | None = None  # since when it only waits for what is left to be taken
        self._awaited: tuple[Any, ...] = (self.conn.their_state, None, False)
        self._looked = self._began
        super().connection_made(transport)
        if len(self.connections) > self.limits.most and not self._make_room():
            self._refuse(503, "too many connections; try again later")

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        self._received += len(data)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._note_step()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_step()

    def pause_writing(self) -> None:
        self._blocked = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request, where an answer is still possible, and close."""
        self._refuse(400, msg)

    @property
    def waits(self) -> bool:
        """Whether the client has to act before anything can go on."""
        if self._blocked is not None:
            return True
        their = self.conn.their_state
        return their is h11.IDLE or (their is h11.SEND_BODY and not self.flow.read_paused)

    @property
    def silent_since(self) -> float:
        """When it last gave a sign."""
        return self._heard if self._blocked is None else max(self._heard, self._blocked)

    def check(self, now: float) -> None:
        """Shard the connection off if its client is past a deadline; called about once a second."""
        if self.transport.is_closing():
            self._closing = self._closing or now
            if now - self._closing > self.limits.send_s:
                self.transport.abort()
            return
        limits, waited = self.limits, now - self._began
        their = self.conn.their_state
        if self._blocked is not None:
            if now - self._blocked > limits.send_s:
                self.transport.abort()
        elif their is h11.IDLE and waited > limits.header_s:
            if self._received:
                self._refuse(408, "the request's header was not sent in time")
            else:
                self.transport.close()
        elif their is h11.SEND_BODY:
            if self._awaited[-1] and self._received > limits.ignored:  # of a body that was refused
                self.transport.abort()
            elif self.flow.read_paused:  # the server is slow, not the client
                self._began += min(now - self._looked, waited)
            elif waited > limits.body_s + self._received / limits.body_rate:
                self._refuse(408, "the request's body was not sent in time")
        self._looked = now

    def _note_step(self) -> None:
        """A new step begins when another state, or another request, is waited for."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        step = (self.conn.their_state, self.cycle, is_answered)
        if step != self._awaited:
            self._awaited, self._began, self._received = step, time.monotonic(), 0
            self._looked = self._began

    def _make_room(self) -> bool:
        """Shard off the connection that has been silent longest; False if none waits for its client."""
        others = (cast(Connection, other) for other in self.connections if other is not self)
        silent = [c for c in others if c.waits and not c.transport.is_closing()]
        if not silent:
            return False
        min(silent, key=lambda c: c.silent_since).transport.abort()
        return True

    def _refuse(self, status: int, message: str) -> None:
        """Reply if nothing was replied yet, and close."""
        reply = error_reply(status, message)
        head = h11.Response(status_code=status, headers=[*reply.raw_headers, (b"connection", b"close")])
        try:
            self.transport.write((self.conn.send(head) or b"") + (self.conn.send(h11.Data(bytes(reply.body))) or b""))
        except h11.LocalProtocolError:  # a reply is under way or has been given
            self.transport.abort()
        else:
            self.transport.close()


def connection_type(limits: ConnectionLimits) -> type[Connection]:
    """The class of one server's connections."""
    return type("Connection", (Connection,), {"limits": limits})
