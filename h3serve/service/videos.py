"""Create, look up, list, cancel and delete videos."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from h3serve.service.body import Body, read_body
from h3serve.service.context import CallerOf, Context, ContextOf
from h3serve.service.estimate import seconds_for
from h3serve.service.job import Job, Json, new_id
from h3serve.service.keys import Caller
from h3serve.service.moves import State
from h3serve.service.replies import Refusal
from h3serve.service.schema import CREATE_BODY, ERRORS
from h3serve.service.store import QueueFull

router = APIRouter(prefix="/v1", responses=ERRORS)
_MAX_KEY = 255
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=_MAX_KEY)]


@router.post("/videos", openapi_extra=CREATE_BODY)
async def create_video(
    request: Request, caller: CallerOf, context: ContextOf, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Accept a video to generate; the reply goes out at once and the job survives restarts."""
    context.check_open()
    job_id = new_id()
    try:
        if idempotency_key is None and not request.headers.get("content-type", "").startswith("application/json"):
            await to_thread.run_sync(_check_room, context, caller)  # before anything large is sent
        body = await read_body(request, context.folder.incoming(job_id), context.settings.limits)
        job = await context.work(_accept, context, caller, body, job_id, idempotency_key)
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed before the body was whole", code="incomplete") from None
    finally:
        await _tidy(context, job_id)
    return JSONResponse(context.view(job), headers={"Location": f"/v1/videos/{job.id}"})


@router.post("/plan", openapi_extra=CREATE_BODY)
async def plan_video(request: Request, caller: CallerOf, context: ContextOf) -> JSONResponse:
    """What a request would become, without running it: canvas, frames, rows, memory, seconds."""
    job_id = new_id()
    folder = context.folder.incoming(job_id)
    try:
        body = await read_body(request, folder, context.settings.limits)
        plan = await context.work(_plan, context, caller, body, job_id)
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed before the body was whole", code="incomplete") from None
    finally:
        await _tidy(context, job_id)
    return JSONResponse(plan)


@router.get("/videos")
def list_videos(
    caller: CallerOf,
    context: ContextOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Json:
    """The caller's videos, newest first; `after` is the last id of the page before."""
    if after is not None:
        context.find(after, caller)
    jobs, has_more = context.store.page(owner=caller.name, after=after, limit=limit, newest_first=order == "desc")
    data = [context.view(job) for job in jobs]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


@router.get("/videos/{job_id}")
def get_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Where a video stands."""
    return context.view(context.find(job_id, caller))


@router.post("/videos/{job_id}/cancel")
def cancel_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Cancel: at once while queued, within one step while running; a finished video is refused."""
    job = context.find(job_id, caller)
    after = context.store.request_cancel(job.id)
    if after is None:
        raise Refusal(404, f"there is no video {job_id!r}", code="not_found")
    if after.is_final and after.state is not State.CANCELLED:
        raise Refusal(409, f"this video is {after.state} and cannot be cancelled", code="already_final")
    context.supervisor.cancel(job.id)
    return context.view(after)


@router.delete("/videos/{job_id}")
def delete_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Forget a video and its files; a running one is cancelled first."""
    job = context.find(job_id, caller)
    if context.store.delete(job.id):
        context.folder.remove(job.id)
    context.supervisor.cancel(job.id)
    return {"id": job.id, "object": "video.deleted", "deleted": True}


async def _tidy(context: Context, job_id: str) -> None:
    if context.folder.incoming(job_id).exists():
        await to_thread.run_sync(context.folder.remove_incoming, job_id)


def _check_room(context: Context, caller: Caller) -> None:
    try:
        context.check_room(caller)
    except QueueFull as full:
        raise _queue_full(context, full) from None


def _accept(context: Context, caller: Caller, body: Body, job_id: str, key: str | None) -> Job:
    """Freeze the inputs first and write the row last: what is in the store can run."""
    incoming = context.folder.incoming(job_id)
    new = context.intake.prepare(body, job_id=job_id, folder=incoming, caller=caller)
    is_kept = False
    try:
        context.folder.accept(job_id)
        job, is_kept = context.store.put(
            new.with_key(key), max_queued=context.settings.max_queued, max_owned=caller.max_queued
        )
    except QueueFull as full:
        raise _queue_full(context, full) from None
    finally:
        if not is_kept:
            context.folder.remove(job_id)
    context.supervisor.wake()
    return job


def _plan(context: Context, caller: Caller, body: Body, job_id: str) -> dict[str, Any]:
    folder = context.folder.incoming(job_id)
    plan = context.intake.prepare(body, job_id=job_id, folder=folder, caller=caller).plan
    return {"object": "plan", **plan, "estimated_seconds": seconds_for(context.store, plan)}


def _queue_full(context: Context, full: QueueFull) -> Refusal:
    return Refusal(429, str(full), code="queue_full", retry_s=context.retry_after())
