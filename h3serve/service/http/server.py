"""A server's life: bind, lock, recover, load, serve, drain, and leave nothing behind when it fails.

The first SIGTERM or SIGINT drains: no new job, the running ones finish, everything can still be
asked. A second one, or the end of `drain_s`, gives running jobs back to the queue and ends.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn

from h3serve.core.errors import H3Error
from h3serve.service.http.api_keys import Caller, KeyRing, read_keys
from h3serve.service.http.app import make_app
from h3serve.service.http.connections import Connection, connection_type, most_connections, raise_descriptor_limit
from h3serve.service.http.context import Context
from h3serve.service.http.intake import Intake
from h3serve.service.http.intake_lanes import Lanes
from h3serve.service.http.webhooks import WebhookSender, read_secret
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.janitor import Janitor
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.ownership import OwnershipWatch
from h3serve.service.jobs.retry import recover
from h3serve.service.json_logs import start_logs
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import ServiceSettings
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.ray_relay import ray_command
from h3serve.service.workers.supervisor import Supervisor
from h3serve.service.workers.worker_process import COMMAND

log = logging.getLogger("h3serve.server")
_STREAMS_S = 3  # open downloads may take this long at the very end
_RETENTION_S = 60.0
_BACKLOG = 2048  # connections that wait in the kernel
_ACCEPTS = 16  # of them are taken at once: each needs a descriptor before any can be refused
_INTAKE_THREADS, _INTAKE_THREADS_OF_ONE = 16, 4  # that fetch and probe media, and of them for one key
_INTAKE_PATIENCE_S = 60.0
_SWITCH_S = 0.0005  # a thread that takes a large body apart lets the others run so soon; Python's own is 5 ms
_TICKS_PER_CHECK = 10  # of uvicorn's, of 0.1 s


def serve(settings: ServiceSettings, *, command: Sequence[str] | None = None) -> None:
    """Run until told to stop. Raises H3Error when the start-up fails, after cleaning up.

    `command` starts a worker; tests replace it.
    """
    start_logs()
    if (settings.database or "").startswith("sqlite"):
        raise H3Error("the database is named for PostgreSQL only; a SQLite file is always in the data folder")
    most = most_connections(settings.connections.most, raise_descriptor_limit())
    settings = replace(settings, connections=replace(settings.connections, most=most))
    with ExitStack() as stack:
        anybody = Caller(max_priority=settings.max_priority)
        keys = KeyRing(read_keys(settings.keys) if settings.keys else (), anybody=anybody)
        if settings.weights is not None and not (keys.has_admin or settings.admin_without_key):
            raise H3Error(
                "weight updates need a key file with an admin key (h3serve keys NAME --file FILE --admin), "
                "or --admin-without-key for clients on this machine"
            )
        secret = read_secret(settings.webhook_secret) if settings.webhook_secret else None
        listener = bind(settings.host, settings.port)
        stack.callback(listener.close)
        folder = DataFolder(settings.data)
        folder.open()
        stack.callback(folder.close)
        folder.undo = True
        store = JobStore(settings.database or folder.default_url, on_full=folder.reserve.release)
        stack.callback(store.close)
        recover(store, folder)
        folder.reserve.take()
        starts = command or (ray_command(settings.ray) if settings.ray else COMMAND)
        server = Server(settings, store, folder, keys, starts)
        try:
            server.live(listener, secret)
            folder.undo = False
        finally:
            folder.undo = folder.undo and not store.ids()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises H3Error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on every connection; without, a reply waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise H3Error(f"cannot listen on {host} port {port}: {error}") from error
    return listener


class Server(uvicorn.Server):
    """uvicorn, with another meaning of its signals, around the supervisor."""

    def __init__(
        self, settings: ServiceSettings, store: JobStore, folder: DataFolder, keys: KeyRing, command: Sequence[str]
    ) -> None:
        ledger = Ledger(store, folder, Metrics(), max_running=keys.max_running)
        self.supervisor = Supervisor(settings, ledger, on_fatal=self.fail, command=command)
        ledger.metrics.watch(store.counts, self.supervisor.states)

        def inputs_of(job_id: str, owner: str) -> Path | None:
            return folder.inputs(job_id) if store.get(job_id, owner) is not None else None

        of_one = _INTAKE_THREADS if keys.is_open else _INTAKE_THREADS_OF_ONE
        lanes = Lanes(_INTAKE_THREADS, of_one=of_one, patience_s=_INTAKE_PATIENCE_S)
        intake = Intake(settings, self.supervisor, inputs_of)
        self.context = Context(settings, store, folder, ledger, self.supervisor, keys, intake, lanes)
        self.failure: str | None = None
        config = uvicorn.Config(
            make_app(self.context),
            http=connection_type(settings.connections),
            backlog=_ACCEPTS,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the peer is who is connected, not who a header names
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=_STREAMS_S,
        )
        super().__init__(config)

    def live(self, listener: socket.socket, secret: bytes | None) -> None:
        """Serve until a signal or a failed first load; raises H3Error for the latter."""
        settings, context = self.context.settings, self.context
        helpers: list[Janitor | WebhookSender | OwnershipWatch] = [
            Janitor(context.store, context.folder, settings.retention, every_s=_RETENTION_S)
        ]
        if secret is not None:
            private = settings.webhook_private
            helpers.append(WebhookSender(context.store, secret, context.metrics, private=private))
        if context.store.ownership is not None:
            helpers.append(OwnershipWatch(context.store.ownership, self.fail))
        context.helpers.extend(helpers)
        for thread in (*helpers, self.supervisor):
            thread.start()
        host, port = listener.getsockname()[:2]
        log.info(f"listening on http://{host}:{port}", extra={"port": port, "tasks": self.supervisor.tasks})
        gc.collect()
        sys.setswitchinterval(_SWITCH_S)
        gc.freeze()  # what start-up made stays: without this a full collection holds every reply up for 90 ms
        try:
            self.run([listener])
        finally:
            self.supervisor.hurry()
            for helper in helpers:
                helper.stop.set()
                helper.join()
        log.info("stopped")
        if self.failure is not None:
            raise H3Error(self.failure)

    def fail(self, reason: str) -> None:
        """The first load failed, or the database is another server's: end."""
        self.failure, self.should_exit = reason, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.context.draining.is_set():
            threading.Thread(target=self._end, args=(0.0,)).start()
            return
        self.context.draining.set()
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        threading.Thread(target=self._end, args=(self.context.settings.drain_s,)).start()

    def _end(self, seconds: float) -> None:
        self.supervisor.drain(seconds)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has taken _ACCEPTS for both

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_CHECK == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                cast(Connection, connection).check(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.closing.set()  # event streams end by themselves
        await super().shutdown(sockets)
