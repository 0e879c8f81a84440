"""Around every request: its host, security headers, writes only from the page's own origin, a time measured."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from h3serve.service.http.allowed_hosts import Hosts
from h3serve.service.http.body import BodyCap
from h3serve.service.jobs.error_replies import error_reply, reply_to
from h3serve.service.prometheus_metrics import Metrics

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
}
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "DELETE", "PUT", "PATCH"})  # of the metrics' label
_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class SecurityHeaders:
    """ASGI middleware; it sees every reply, streams included."""

    def __init__(self, app: ASGIApp, metrics: Metrics, hosts: Hosts) -> None:
        self.app, self.metrics, self.hosts = app, metrics, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, has_begun, began = 500, False, time.monotonic()

        async def guarded(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            if (refusal := self.refusal(scope)) is not None:
                await refusal(scope, receive, guarded)
            else:
                await self.app(scope, BodyCap(scope, receive), guarded)
        except Exception as error:
            if has_begun:  # too late for another reply: the connection is cut
                raise
            await reply_to(error)(scope, receive, guarded)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            labels = self.metrics.requests.labels(method, route, str(status))
            labels.observe(time.monotonic() - began)

    def refusal(self, scope: Scope) -> JSONResponse | None:
        """What is answered instead of the application; every route is behind it."""
        headers = Headers(scope=scope)
        host = headers.get("host")  # HTTP/1.0 may leave it out; no browser does
        if host is not None and not self.hosts.allows(host):
            return error_reply(421, f"{host[:80]!r} is not this server; --allowed-host adds names", code="wrong_host")
        if "content-length" in headers and "transfer-encoding" in headers:  # what follows may be another's request
            reply = error_reply(400, "Content-Length and Transfer-Encoding exclude each other", code="bad_framing")
            reply.headers["Connection"] = "close"
            return reply
        if is_foreign_write(scope):
            return error_reply(403, "another site may not write here")
        return None


def is_foreign_write(scope: Scope) -> bool:
    """A browser names the page a write comes from; other programs send no Origin."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if scope["method"] in _READS or origin is None:
        return False
    return urlsplit(origin).netloc != headers.get("host")
