"""When a call is made again: what may be, how long later, and until when."""

from __future__ import annotations

import time

import httpx

from h3serve.client.problems import ServerLost, refusal_of

AGAIN = frozenset({429, 502, 503, 504})  # full, or a proxy or server that will be back
FIRST_S, MOST_S = 0.2, 10.0  # between two tries


class Retries:
    """Of one call: waits double from try to try, and end `seconds` after the last sign of life."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.succeeded()

    def succeeded(self) -> None:
        """The server answered: the next trouble is a new one."""
        self._wait, self._until = FIRST_S, time.monotonic() + self._seconds

    def next_wait(self, trouble: httpx.TransportError | httpx.Response) -> float:
        """Seconds until the next try. Where none is left: ServerLost, or what the server last said (it was read)."""
        wait, self._wait = self._wait, min(2 * self._wait, MOST_S)
        if isinstance(trouble, httpx.Response):
            wait = max(wait, _asked_for(trouble))
        if time.monotonic() + wait > self._until:
            if isinstance(trouble, httpx.Response):
                raise refusal_of(trouble)
            said = str(trouble) or type(trouble).__name__
            where = trouble.request.url.copy_with(query=None)
            raise ServerLost(f"{where} cannot be reached: {said}; tried for {self._seconds:g} s") from None
        return wait


def _asked_for(reply: httpx.Response) -> float:
    try:
        return float(reply.headers.get("retry-after", "0"))
    except ValueError:  # a date: nobody here sends one
        return 0.0
