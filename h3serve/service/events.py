"""Server-sent events of one video: `progress` while it waits and runs, then its final state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from anyio import to_thread
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from h3serve.service.context import CallerOf, Context, ContextOf
from h3serve.service.job import Job, Json
from h3serve.service.schema import ERRORS
from h3serve.service.views import percent

router = APIRouter(prefix="/v1", responses=ERRORS)
_QUIET_S = 10.0  # a comment at least this often shows that the line is alive
_CLOSING_S = 0.5  # how soon a stream notices that the server stops


@router.get("/videos/{job_id}/events", response_class=StreamingResponse)
async def get_events(job_id: str, caller: CallerOf, context: ContextOf) -> StreamingResponse:
    """A stream that ends with `completed`, `failed`, `cancelled`, `expired` or `deleted`."""
    await to_thread.run_sync(context.find, job_id, caller)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(context, job_id), media_type="text/event-stream", headers=headers)


async def _stream(context: Context, job_id: str) -> AsyncIterator[str]:
    shown: Json | None = None
    with context.board.listen(job_id) as changed:
        while not context.closing.is_set():
            changed.clear()
            job = await to_thread.run_sync(context.store.get, job_id)
            if job is None or job.is_final:
                yield _event("deleted", {"id": job_id}) if job is None else _event(job.state, context.view(job))
                return
            if (now := _brief(context, job)) != shown:
                shown = now
                yield _event("progress", now)
            if not await _heard(changed, context):
                yield ": still here\n\n"


async def _heard(changed: asyncio.Event, context: Context) -> bool:
    """Whether something changed before it was quiet for too long or the server closed."""
    for _ in range(round(_QUIET_S / _CLOSING_S)):
        try:
            await asyncio.wait_for(changed.wait(), _CLOSING_S)
            return True
        except TimeoutError:
            if context.closing.is_set():
                return False
    return False


def _brief(context: Context, job: Job) -> Json:
    snapshot = context.board.get(job.id)
    return {
        "id": job.id,
        "status": str(job.state),
        "progress": percent(job, snapshot),
        "stage": snapshot.stage if snapshot else None,
        "step": snapshot.step if snapshot else None,
        "steps": snapshot.steps if snapshot else None,
        "seconds_left": snapshot.seconds_left if snapshot else None,
    }


def _event(name: str, data: Json) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
