"""What a call may end with instead of its result."""

from __future__ import annotations

import httpx

from h3serve.core.errors import H3Error


class ServerRefused(H3Error):
    """The server said no, in its own words; `param` is the field that is wrong, `code` what happened."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.exit_code = 2 if status in (400, 413, 415, 422) else 1


class ServerLost(H3Error):
    """The server could not be reached for as long as the caller is patient."""


def refusal_of(reply: httpx.Response) -> ServerRefused:
    """The error that a reply holds, whoever wrote it: a proxy may have."""
    try:
        error = reply.json()["error"]
        return ServerRefused(reply.status_code, str(error["message"]), code=error.get("code"), param=error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServerRefused(reply.status_code, f"{reply.url.copy_with(query=None)} replies HTTP {reply.status_code}")
