"""Create a video and wait for it: the reply is the MP4 itself, as clients of vLLM-Omni expect it."""

from __future__ import annotations

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from h3serve.service.http.context import CallerOf, Context, ContextOf
from h3serve.service.http.openapi_schema import CREATE_BODY, ERRORS
from h3serve.service.http.video_content import file_reply
from h3serve.service.http.videos import IdempotencyKey, create
from h3serve.service.jobs.error_replies import Refusal, error_reply
from h3serve.service.jobs.job import Job, State

router = APIRouter(prefix="/v1", responses=ERRORS)
_LOOK_S = 0.5  # how soon it is noticed that the client has gone or the server stops
_STATUS = {"invalid_request": 400, "invalid_media": 400, "does_not_fit": 422}


@router.post("/videos/sync", openapi_extra=CREATE_BODY, response_class=FileResponse)
async def create_and_wait(
    request: Request, caller: CallerOf, context: ContextOf, idempotency_key: IdempotencyKey = None
) -> Response:
    """Generate a video and reply with its MP4; `X-Video-Id` names the job.

    A client that goes away cancels it, unless its Idempotency-Key lets it come back for the video.
    """
    job = await create(request, caller, context, idempotency_key)
    after = await _end_of(job, request, context)
    if after is None and idempotency_key is None:
        await to_thread.run_sync(context.cancel, job)
    reply = await to_thread.run_sync(_reply, request, context, after)
    reply.headers["X-Video-Id"] = job.id
    return reply


async def _end_of(job: Job, request: Request, context: Context) -> Job | None:
    """The job once it has ended; None when the client has gone before."""
    with context.board.listen(job.id) as bell:
        while not context.closing.is_set():
            bell.take()
            now = await to_thread.run_sync(context.store.get, job.id)
            if now is None:
                raise Refusal(404, f"video {job.id!r} was deleted", code="not_found")
            if now.is_final:
                return now
            while not await bell.wait(_LOOK_S) and not context.closing.is_set():
                if await request.is_disconnected():
                    return None
    raise Refusal(503, f"the server stops; ask it for video {job.id!r} when it is back", retry_s=30)


def _reply(request: Request, context: Context, after: Job | None) -> Response:
    if after is None:
        return Response(status_code=499)  # nobody reads it; the metrics count it
    if after.state is State.FAILED:
        return error_reply(_STATUS.get(after.error_code or "", 500), after.error or "", code=after.error_code)
    return file_reply(request, context, after, "video")
