"""Webhooks: a signed POST when a job ends, repeated with growing pauses until it is accepted.

The signature is that of Standard Webhooks (standardwebhooks.com), as OpenAI sends it. What is owed
is kept in the store, so a restart forgets nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from h3serve.core.errors import H3Error
from h3serve.media.sources.http_client import Bounds, OutgoingError, exchange
from h3serve.service.jobs.job import Job
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics

log = logging.getLogger("h3serve.webhooks")
_PREFIX = "whsec_"
_PAUSES_S = (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)  # after each failed try; then no more
_BOUNDS = Bounds(total_seconds=10.0, connect_seconds=5.0)
_LOOK_S = 0.5
_AFTER_ERROR_S = 5.0
_AT_ONCE = 64
_AT_ONCE_PER_KEY = 16  # a key whose receivers are slow waits for itself


class WebhookSender(threading.Thread):
    """Delivers what the store says is owed, many at once. `private` allows addresses inside one's own network."""

    def __init__(self, store: JobStore, secret: bytes, metrics: Metrics, *, private: bool = False) -> None:
        super().__init__(name="webhooks", daemon=True)
        self.store, self.secret, self.metrics = store, secret, metrics
        self.bounds = replace(_BOUNDS, private_addresses=private)
        self.stop = threading.Event()

    def run(self) -> None:
        """Go on until `stop` is set, whatever happens; what is under way then stays owed."""
        while not self.stop.is_set():
            try:
                asyncio.run(self._rounds())
            except Exception:  # the store or the machine may be well again soon
                log.exception("delivering webhooks failed; it goes on")
                self.stop.wait(_AFTER_ERROR_S)

    async def _rounds(self) -> None:
        self._under_way: dict[asyncio.Task[None], Job] = {}
        while not self.stop.is_set():
            self._start_owed()
            await asyncio.sleep(_LOOK_S)

    def _start_owed(self) -> None:
        """Start as many tries as there is room for, each counted first: else a full disk would mean endless tries."""
        jobs = self._under_way.values()
        owners = Counter(job.owner for job in jobs)
        busy = {owner for owner, count in owners.items() if count >= _AT_ONCE_PER_KEY}
        room = _AT_ONCE - len(jobs)
        for job in self.store.owed_webhooks(time.time(), room, not_ids={job.id for job in jobs}, not_owners=busy):
            if owners[job.owner] >= _AT_ONCE_PER_KEY:
                continue
            owners[job.owner] += 1
            self.store.count_webhook(job.id, time.time() + _PAUSES_S[min(job.webhook_tries, len(_PAUSES_S) - 1)])
            task = asyncio.get_running_loop().create_task(self._deliver(job))
            self._under_way[task] = job
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        job = self._under_way.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("delivering a webhook failed; it goes on", extra={"job": job.id}, exc_info=error)

    async def _deliver(self, job: Job) -> None:
        problem = await self._post(job)
        self.metrics.webhooks.labels("delivered" if problem is None else "failed").inc()
        is_last = job.webhook_tries >= len(_PAUSES_S)
        if problem is None or is_last:
            self.store.settle_webhook(job.id)
        if problem is not None:
            log.warning("webhook not delivered", extra={"job": job.id, "cause": problem, "again": not is_last})

    async def _post(self, job: Job) -> str | None:
        """Why it was not accepted; None when it was. Of the reply only the status counts, so no more is read."""
        body = event_body(job)
        headers = sign(self.secret, f"evt_{job.id}", body) | {"Content-Type": "application/json"}
        try:
            async with exchange("POST", job.webhook_url or "", self.bounds, headers=headers, content=body) as reply:
                return None if reply.is_success else f"status {reply.status_code}"
        except OutgoingError as error:
            return str(error)


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
