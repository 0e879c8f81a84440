"""Server-sent events of one video, or of all that a key has in one stream.

A browser opens six connections to a host, and every stream holds one: a page takes the stream of all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from h3serve.service.http.api_keys import Caller
from h3serve.service.http.context import CallerOf, Context, ContextOf
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.http.video_json import percent
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import WAITING, Job, Json
from h3serve.service.jobs.live_progress import Bell

router = APIRouter(prefix="/v1", responses=ERRORS)
_QUIET_S = 10.0  # a comment at least this often shows that the line is alive
_CLOSING_S = 0.5  # how soon a stream notices that the server stops
_TOO_MANY_RETRY_S = 5
_ALIVE = ": still here\n\n"


@router.get("/videos/events", response_class=StreamingResponse)
async def get_all_events(request: Request, caller: CallerOf, context: ContextOf) -> Response:
    """A stream without end of all the caller's videos.

    `created` with the whole video, first for each that waits or runs; then `progress`, and `completed`,
    `failed` or `cancelled` with the whole video, or `deleted`.
    """
    return _reply(request, context, caller, _stream_all(context, caller.name))


@router.get("/videos/{job_id}/events", response_class=StreamingResponse)
async def get_events(job_id: str, request: Request, caller: CallerOf, context: ContextOf) -> Response:
    """A stream that ends with `completed`, `failed`, `cancelled`, `expired` or `deleted`."""
    await to_thread.run_sync(context.find, job_id, caller)
    return _reply(request, context, caller, _stream(context, job_id))


def _reply(request: Request, context: Context, caller: Caller, stream: AsyncGenerator[str]) -> Response:
    """A reply of the events; raises Refusal 429 when the caller has too many."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}
    if request.method == "HEAD":
        return Response(headers=headers)
    most = context.settings.connections.streams
    if context.streams[caller.name] >= most:
        message = f"this key already has {most} event streams open: /v1/videos/events tells of all its videos in one"
        raise Refusal(429, message, code="too_many_streams", retry_s=_TOO_MANY_RETRY_S)
    return StreamingResponse(_counted(context, caller.name, stream), headers=headers)


async def _counted(context: Context, owner: str, stream: AsyncGenerator[str]) -> AsyncIterator[str]:
    context.streams[owner] += 1
    try:
        async with aclosing(stream):
            async for event in stream:
                yield event
    finally:
        context.streams[owner] -= 1


async def _stream_all(context: Context, owner: str) -> AsyncGenerator[str]:
    shown: dict[str, Json] = {}
    with context.board.listen_all(owner) as bell:
        yield _ALIVE  # the listener is there: nothing is missed from now on
        waiting = await to_thread.run_sync(context.store.in_state, *WAITING)
        changed = [job.id for job in waiting if job.owner == owner]
        while not context.closing.is_set():
            for job_id in changed:
                job = await to_thread.run_sync(context.store.get, job_id, owner)
                for event in _changes(context, job_id, job, shown):
                    yield event
            if not await _heard(bell, context):
                yield _ALIVE
            changed = bell.take()


def _changes(context: Context, job_id: str, job: Job | None, shown: dict[str, Json]) -> list[str]:
    """What there is to say of a job that changed; `shown` is what was said of those that wait or run."""
    if job is None or job.is_final:
        shown.pop(job_id, None)
        return [_end(context, job_id, job)]
    before, now = shown.get(job_id), _brief(context, job)
    shown[job_id] = now
    if before is None:
        return [_event("created", context.view(job))]
    return [_event("progress", now)] if now != before else []


async def _stream(context: Context, job_id: str) -> AsyncGenerator[str]:
    shown: Json | None = None
    with context.board.listen(job_id) as bell:
        while not context.closing.is_set():
            bell.take()
            job = await to_thread.run_sync(context.store.get, job_id)
            if job is None or job.is_final:
                yield _end(context, job_id, job)
                return
            if (now := _brief(context, job)) != shown:
                shown = now
                yield _event("progress", now)
            if not await _heard(bell, context):
                yield _ALIVE


async def _heard(bell: Bell, context: Context) -> bool:
    """Whether something changed before it was quiet for too long or the server closed."""
    for _ in range(round(_QUIET_S / _CLOSING_S)):
        if await bell.wait(_CLOSING_S):
            return True
        if context.closing.is_set():
            return False
    return False


def _end(context: Context, job_id: str, job: Job | None) -> str:
    return _event("deleted", {"id": job_id}) if job is None else _event(job.state, context.view(job))


def _brief(context: Context, job: Job) -> Json:
    snapshot = context.board.get(job.id)
    return {
        "id": job.id,
        "status": str(job.state),
        "progress": percent(job, snapshot),
        "cancel_requested": job.cancel_requested,
        "stage": snapshot.stage if snapshot else None,
        "step": snapshot.step if snapshot else None,
        "steps": snapshot.steps if snapshot else None,
        "seconds_left": snapshot.seconds_left if snapshot else None,
    }


def _event(name: str, data: Json) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
