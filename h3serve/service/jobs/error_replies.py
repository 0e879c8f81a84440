"""Every error as OpenAI's error object. No server path and no trace leaves through here."""

from __future__ import annotations

import errno
import logging
import re

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from h3serve.core.errors import H3Error, RequestError
from h3serve.service.jobs.database import REFUSALS, is_full

log = logging.getLogger("h3serve.http")

# An absolute path of two or more parts, but not the path of a URL or of a media type.
_PATH = re.compile(r"(?<![\w:/.\-])(?:/[^\s/'\":,;()]+)+/([^\s/'\":,;()]+)")
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    410: "expired",
    413: "too_large",
    422: "does_not_fit",
    429: "queue_full",
    503: "unavailable",
    507: "insufficient_storage",
}


class Refusal(H3Error):
    """A refusal that is about the service and not the request's fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        self.http_status, self.code, self.param, self.retry_s = status, code, param, retry_s
        super().__init__(message)


def scrub(text: str) -> str:
    """The text with absolute paths cut to their last part."""
    return _PATH.sub(r"\1", text)


def error_reply(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    allowed: str | None = None,
    retry_s: int | None = None,
) -> JSONResponse:
    """{"error": {message, type, param, code}}, and what is allowed where that is known."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": scrub(message), "type": kind, "param": param, "code": code or _CODES.get(status)}
    if allowed is not None:
        body["allowed"] = scrub(allowed)
    headers = {} if retry_s is None else {"Retry-After": str(retry_s)}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": body}, status, headers)


def reply_to(error: Exception) -> JSONResponse:
    """The reply for any exception."""
    if isinstance(error, RequestError):
        param = None if error.field == "request" else error.field
        return error_reply(error.http_status, str(error), param=param, code="invalid_value", allowed=error.allowed)
    if isinstance(error, Refusal):
        return error_reply(error.http_status, str(error), code=error.code, retry_s=error.retry_s)
    if isinstance(error, H3Error):
        return error_reply(error.http_status, str(error), retry_s=getattr(error, "retry_s", None))
    if isinstance(error, REFUSALS):
        return _database_reply(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error_reply(507, "the server's disk is full; nothing was accepted")
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        log.error("the data folder cannot be written", exc_info=error)
        return error_reply(503, "the server cannot write its files now; nothing was accepted", retry_s=30)
    log.error("unexpected error", exc_info=error)
    return error_reply(500, "internal error; the server's log has the details", code="internal")


def _database_reply(error: SQLAlchemyError) -> JSONResponse:
    text = str(getattr(error, "orig", error))
    log.error("the job database refused", extra={"cause": text})
    if is_full(error):
        return error_reply(507, "the server's disk is full; nothing was accepted")
    return error_reply(503, "the job database is busy or cannot be written; nothing was accepted", retry_s=5)


def install(app: FastAPI) -> None:
    """Answer in this shape; what nobody foresaw is answered by `SecurityHeaders`."""

    async def any_error(_request: Request, error: Exception) -> JSONResponse:
        return reply_to(error)

    async def http_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        reply = error_reply(error.status_code, str(error.detail))
        reply.headers.update(error.headers or {})
        return reply

    async def validation_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        return error_reply(400, f"{param}: {first['msg']}", param=param, code="invalid_value")

    for kind in (H3Error, *REFUSALS, OSError):
        app.add_exception_handler(kind, any_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
