"""Webhooks: a signed POST when a job ends, repeated with growing pauses until it is accepted.

The signature is that of Standard Webhooks (standardwebhooks.com), as OpenAI sends it. What is owed
is kept in the store, so a restart forgets nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from sqlalchemy.exc import OperationalError

from h3serve.core.errors import H3Error
from h3serve.service.job import Job
from h3serve.service.metrics import Metrics
from h3serve.service.store import JobStore

log = logging.getLogger("h3serve.webhooks")
_PREFIX = "whsec_"
_PAUSES_S = (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)  # after each failed try; then no more
_TIMEOUT_S = 10.0
_LOOK_S = 0.5


class WebhookSender(threading.Thread):
    """Delivers what the store says is owed. `private` allows addresses inside one's own network."""

    def __init__(self, store: JobStore, secret: bytes, metrics: Metrics, *, private: bool = False) -> None:
        super().__init__(name="webhooks", daemon=True)
        self.store, self.secret, self.metrics, self.private = store, secret, metrics, private
        self.stop = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            while not self.stop.wait(_LOOK_S):
                try:
                    for job in self.store.owed_webhooks(time.time()):
                        self._deliver(client, job)
                except OperationalError as error:
                    log.error("the job database refused", extra={"cause": str(error.orig)})

    def _deliver(self, client: httpx.Client, job: Job) -> None:
        problem = self._post(client, job)
        is_last = job.webhook_tries >= len(_PAUSES_S)
        due = None if problem is None or is_last else time.time() + _PAUSES_S[job.webhook_tries]
        self.store.owe_webhook(job.id, due)
        self.metrics.webhooks.labels("delivered" if problem is None else "failed").inc()
        if problem is not None:
            log.warning("webhook not delivered", extra={"job": job.id, "cause": problem, "again": due is not None})

    def _post(self, client: httpx.Client, job: Job) -> str | None:
        """Why it was not accepted; None when it was."""
        body = event_body(job)
        headers = sign(self.secret, f"evt_{job.id}", body) | {"Content-Type": "application/json"}
        try:
            url, more = _pinned(job.webhook_url or "", self._resolve)
            host = urlsplit(job.webhook_url or "").netloc.rpartition("@")[2]
            reply = client.post(url, content=body, headers=headers | {"Host": host}, extensions=more)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None if reply.is_success else f"status {reply.status_code}"

    def _resolve(self, host: str, port: int) -> str:
        """An address of `host`; refuses those that lead into the server's own network."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not self.private and not all(ipaddress.ip_address(a).is_global for a in addresses):
            raise ValueError(f"{host} has a private address")
        return addresses[0]


def _pinned(url: str, resolve: Callable[[str, int], str]) -> tuple[httpx.URL, dict[str, str]]:
    """The URL with the checked address in it, so that no second look-up can lead elsewhere."""
    parts = httpx.URL(url)
    address = resolve(parts.host, parts.port or (443 if parts.scheme == "https" else 80))
    return parts.copy_with(host=address), {"sni_hostname": parts.host}


def event_body(job: Job) -> bytes:
    """`video.completed`, `video.failed` or `video.cancelled`, in the shape of OpenAI's events."""
    event = {
        "id": f"evt_{job.id}",
        "object": "event",
        "type": f"video.{job.state}",
        "created_at": int(job.finished_at or job.created_at),
        "data": {"id": job.id},
    }
    return json.dumps(event).encode()


def sign(secret: bytes, name: str, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks."""
    moment = str(int(time.time()))
    signed = b".".join((name.encode(), moment.encode(), body))
    digest = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": name, "webhook-timestamp": moment, "webhook-signature": f"v1,{digest}"}


def read_secret(path: Path) -> bytes:
    """The signing secret in a file: `whsec_` and base64, at least 24 bytes; raises H3Error."""
    try:
        text = path.read_text().strip()
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except OSError as error:
        raise H3Error(f"the webhook secret {path} cannot be read: {error.strerror}") from error
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < 24:
        raise H3Error(f"the webhook secret {path} must hold {_PREFIX} and at least 24 bytes in base64")
    return secret
