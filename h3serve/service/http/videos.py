"""Create, look up, list, cancel and delete videos."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from h3serve.service.http.api_keys import Caller
from h3serve.service.http.body import Body, read_body
from h3serve.service.http.context import CallerOf, Context, ContextOf
from h3serve.service.http.openapi_schema import CREATE_BODY, ERRORS
from h3serve.service.jobs.admission import QueueFull
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Job, Json, NewJob, State, new_id
from h3serve.service.jobs.seconds_estimate import seconds_for

router = APIRouter(prefix="/v1", responses=ERRORS)
_MAX_KEY = 255
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=_MAX_KEY)]


@router.post("/videos", openapi_extra=CREATE_BODY)
async def create_video(
    request: Request, caller: CallerOf, context: ContextOf, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Accept a video to generate; the reply goes out at once and the job survives restarts."""
    job = await create(request, caller, context, idempotency_key)
    return JSONResponse(context.view(job), headers={"Location": f"/v1/videos/{job.id}"})


async def create(request: Request, caller: Caller, context: Context, idempotency_key: str | None) -> Job:
    """The job that a request asks for, in the store; raises H3Error."""
    context.check_open()
    job_id = new_id()
    try:
        if idempotency_key is None and not request.headers.get("content-type", "").startswith("application/json"):
            await to_thread.run_sync(context.check_room, caller)  # before anything large is sent
        async with body_of(request, context, job_id) as body:
            new = (await context.prepare(body, caller, job_id)).with_key(idempotency_key)
            # Whoever waits may leave or be told to stop: between its files and its row a job is not left alone.
            return await asyncio.shield(_accept(context, caller, new, has_files=not body.is_plain))
    except QueueFull as full:
        raise await context.queue_full(full) from None


@router.post("/plan", openapi_extra=CREATE_BODY)
async def plan_video(request: Request, caller: CallerOf, context: ContextOf) -> JSONResponse:
    """What a request would become, without running it: canvas, frames, rows, memory, seconds."""
    job_id = new_id()
    async with body_of(request, context, job_id) as body:
        plan = (await context.prepare(body, caller, job_id)).plan
    seconds = await to_thread.run_sync(seconds_for, context.store, plan)
    return JSONResponse({"object": "plan", **plan, "estimated_seconds": seconds})


@router.get("/videos")
def list_videos(
    caller: CallerOf,
    context: ContextOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> JSONResponse:
    """The caller's videos, newest first; `after` is the last id of the page before."""
    if after is not None:
        context.find(after, caller)
    jobs, has_more = context.store.page(owner=caller.name, after=after, limit=limit, newest_first=order == "desc")
    data = [context.view(job) for job in jobs]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    # Made here, in this thread: a hundred long prompts would hold the event loop up.
    return JSONResponse({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more})


@router.get("/videos/{job_id}")
def get_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Where a video stands."""
    return context.view(context.find(job_id, caller))


@router.post("/videos/{job_id}/cancel")
def cancel_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Cancel: at once while queued, within one step while running; a finished video is refused."""
    after = context.cancel(context.find(job_id, caller))
    if after is None:
        raise Refusal(404, f"there is no video {job_id!r}", code="not_found")
    if after.is_final and after.state is not State.CANCELLED:
        raise Refusal(409, f"this video is {after.state} and cannot be cancelled", code="already_final")
    return context.view(after)


@router.delete("/videos/{job_id}")
def delete_video(job_id: str, caller: CallerOf, context: ContextOf) -> Json:
    """Forget a video and its files; a running one is cancelled first."""
    job = context.find(job_id, caller)
    if context.store.delete(job.id):
        context.folder.remove(job.id)
    context.supervisor.cancel(job.id)
    context.board.ring(job)
    return {"id": job.id, "object": "video.deleted", "deleted": True}


@asynccontextmanager
async def body_of(request: Request, context: Context, job_id: str) -> AsyncIterator[Body]:
    """The body inside the block; what came with it and was not accepted is gone afterwards."""
    folder = context.folder.incoming(job_id)
    body: Body | None = None
    try:
        body = await read_body(request, folder, context.settings.limits, context.readers)
        yield body
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed before the body was whole", code="incomplete") from None
    finally:
        if body is None or not body.is_plain:
            await to_thread.run_sync(context.folder.remove_incoming, job_id)


async def _accept(context: Context, caller: Caller, new: NewJob, *, has_files: bool) -> Job:
    """Freeze the inputs first and write the row last: what is in the store can run."""
    is_new = False
    try:
        if has_files:
            await context.work(caller, partial(context.folder.accept, new.id))
        put = context.store.put(new, context.admission)
        job, is_new = await asyncio.wrap_future(put)
    except asyncio.CancelledError:
        is_new = True  # its row may be on the way; the next start removes what has none
        raise
    finally:
        if has_files and not is_new:
            await to_thread.run_sync(context.folder.remove, new.id)
    context.supervisor.wake()
    if is_new:
        context.board.ring(job)
    return job
