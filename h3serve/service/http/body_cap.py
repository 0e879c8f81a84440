"""A bound on every request's body, small unless the route lifts it: frameworks read bodies whole."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

_SMALL = 2**16
_KEY = "h3serve.body_cap"


class BodyCap:
    """Stands in for `receive` and counts; raises HTTPException 413 once the bound is passed, or announced to be."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        scope[_KEY] = self
        declared = dict(scope["headers"]).get(b"content-length", b"")
        self.limit, self._receive = _SMALL, receive
        self._declared = int(declared[:20]) if declared.isdigit() else 0
        self._seen = 0

    async def __call__(self) -> Message:
        if self._declared > self.limit:
            raise too_large("the body", self.limit)
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self.limit:
            raise too_large("the body", self.limit)
        return message


def lift_cap(scope: Scope, limit: int) -> None:
    """Let the body of this request have up to `limit` bytes."""
    scope[_KEY].limit = limit


def too_large(what: str, limit: int) -> HTTPException:
    """413 with the bound."""
    return HTTPException(413, f"{what} is larger than {limit} bytes")
