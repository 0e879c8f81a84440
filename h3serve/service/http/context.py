"""What the routes share, and the few things they all do with it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from anyio import CapacityLimiter
from fastapi import Depends, Request

from h3serve.service.http.allowed_hosts import is_local
from h3serve.service.http.api_keys import Caller, KeyRing
from h3serve.service.http.body import Body
from h3serve.service.http.intake import Intake
from h3serve.service.http.intake_lanes import Lanes
from h3serve.service.http.video_json import job_view
from h3serve.service.jobs.admission import Admission, QueueFull
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Job, Json, NewJob, is_id
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.live_progress import ProgressBoard
from h3serve.service.jobs.seconds_estimate import Patience
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import ServiceSettings
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.supervisor import Supervisor

T = TypeVar("T")
_DRAIN_RETRY_S = 30
_BODY_THREADS = 8  # that take bodies apart as they come


@dataclass(frozen=True)
class Context:
    """One server's parts."""

    settings: ServiceSettings
    store: JobStore
    folder: DataFolder
    ledger: Ledger
    supervisor: Supervisor
    keys: KeyRing
    intake: Intake
    lanes: Lanes
    draining: threading.Event = field(default_factory=threading.Event)  # takes no new job
    readers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_BODY_THREADS))
    patience: Patience = field(default_factory=Patience)
    helpers: list[threading.Thread] = field(default_factory=list)  # tidying and webhooks; none may die unseen
    streams: Counter[str] = field(default_factory=Counter)  # open event streams of each key
    closing: threading.Event = field(default_factory=threading.Event)  # ends its open streams

    @property
    def board(self) -> ProgressBoard:
        return self.ledger.board

    @property
    def metrics(self) -> Metrics:
        return self.ledger.metrics

    @property
    def admission(self) -> Admission:
        return Admission(self.settings.max_queued, self.keys.max_queued)

    def find(self, job_id: str, caller: Caller) -> Job:
        """The caller's job; raises Refusal 404."""
        job = self.store.get(job_id, caller.name) if is_id(job_id) else None
        if job is None:
            raise Refusal(404, f"there is no video {job_id[:80]!r}", code="not_found")
        return job

    def cancel(self, job: Job) -> Job | None:
        """The job after its cancellation, which finds nothing to do where it has ended; None when it is gone."""
        after = self.store.request_cancel(job.id)
        self.supervisor.cancel(job.id)
        self.board.ring(job)
        return after

    def view(self, job: Job) -> Json:
        return job_view(job, self.settings, self.board.get(job.id))

    def check_open(self) -> None:
        """Raises Refusal 503 while the server drains."""
        if self.draining.is_set():
            raise Refusal(503, "the server is stopping and takes no new job", retry_s=_DRAIN_RETRY_S)

    def check_room(self, caller: Caller) -> None:
        """Raises QueueFull before a body is read."""
        self.store.check_room(caller.name, self.admission)

    async def prepare(self, body: Body, caller: Caller, job_id: str) -> NewJob:
        """The job a body asks for; one that is small and names neither media nor adapters costs no thread."""
        folder = self.folder.incoming(job_id)

        def prepare() -> NewJob:
            return self.intake.prepare(body, job_id=job_id, folder=folder, caller=caller)

        reads_files = not (body.is_plain and body.is_small) or self.settings.adapter_folder is not None
        return prepare() if not reads_files else await self.work(caller, prepare)

    async def work(self, caller: Caller, function: Callable[[], T]) -> T:
        """Run a function that may fetch and probe media in one of a few threads of its own.

        However slow those are, the threads that answer everything else stay free.
        """
        return await self.lanes.run(caller.name, function)

    async def queue_full(self, full: QueueFull) -> Refusal:
        """The 429 that says when to come again."""
        seconds = await self.patience.seconds(self.store, len(self.supervisor.staying))
        return Refusal(429, str(full), code="queue_full", retry_s=seconds)


# `async` although they await nothing: FastAPI would give each of the others a thread.
async def get_context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextOf = Annotated[Context, Depends(get_context)]


async def get_caller(request: Request, context: ContextOf) -> Caller:
    """Who calls; raises BadKey, and Unowned while the database may be another server's."""
    context.store.check_owned()
    return context.keys.caller(request.headers.get("authorization"))


CallerOf = Annotated[Caller, Depends(get_caller)]


async def get_admin(request: Request, caller: CallerOf, context: ContextOf) -> Caller:
    """A caller who may change the server itself; raises Refusal 403 for any other."""
    if caller.is_admin or (context.settings.admin_without_key and context.keys.is_open and is_local(request.scope)):
        return caller
    allowed = (
        "a client on this machine with --admin-without-key, or a key that `h3serve keys NAME --admin` made"
        if context.keys.is_open
        else "a key that `h3serve keys NAME --admin` made"
    )
    raise Refusal(403, f"only an admin may do this: {allowed}", code="not_an_admin")


AdminOf = Annotated[Caller, Depends(get_admin)]
