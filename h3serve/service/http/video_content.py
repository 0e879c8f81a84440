"""The finished files: video, audio, thumbnail; byte ranges, ETag, 409 while not ready, 410 after."""

from __future__ import annotations

import re
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from h3serve.service.http.context import CallerOf, Context, ContextOf
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import WAITING, Job, State

router = APIRouter(prefix="/v1", responses=ERRORS)
Variant = Literal["video", "audio", "thumbnail"]
_RETRY_S = 2
_RANGE = re.compile(r"[ \t]*(?:([0-9]{1,18})-([0-9]{0,18})|-[0-9]{1,18})[ \t]*")


@router.get("/videos/{job_id}/content", response_class=FileResponse)
def get_content(
    job_id: str, request: Request, caller: CallerOf, context: ContextOf, variant: Variant = "video"
) -> Response:
    """A file of a completed video; `Range` and `If-None-Match` are honoured."""
    return file_reply(request, context, context.find(job_id, caller), variant)


def file_reply(request: Request, context: Context, job: Job, variant: Variant) -> Response:
    """The file, or 304; raises Refusal where there is none."""
    _check_ready(job)
    entry: dict[str, Any] | None = (job.files or {}).get(variant)
    path = context.folder.content(job, variant)
    if entry is None or path is None:
        raise Refusal(404, f"this video has no {variant}", code="not_found")
    if not path.is_file():
        raise _gone(context, job)
    headers = {
        "ETag": f'"{entry["sha256"]}"',
        "Cache-Control": "private, max-age=3600",
        "Content-Disposition": f'inline; filename="{job.id}{path.suffix}"',
    }
    if _matches(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if not _is_range(request.headers.get("range", "")):  # to be ignored, where FileResponse would answer 400
        request.scope["headers"] = [(name, value) for name, value in request.scope["headers"] if name != b"range"]
    return FileResponse(path, media_type=entry["type"], headers=headers)


def _is_range(header: str) -> bool:
    """Whether it asks for ranges of bytes as RFC 9110 writes them."""
    unit, _, ranges = header.partition("=")
    parts = [_RANGE.fullmatch(part) for part in ranges.split(",")]
    return unit.lower() == "bytes" and all(part and int(part[1] or 0) <= int(part[2] or part[1] or 0) for part in parts)


def _check_ready(job: Job) -> None:
    if job.state in WAITING:
        raise Refusal(409, f"this video is {job.state}; its file is not ready", code="not_ready", retry_s=_RETRY_S)
    if job.state is State.EXPIRED:
        raise Refusal(410, "this video has expired: its files were given up", code="expired")
    if job.state is not State.COMPLETED:
        raise Refusal(409, f"this video is {job.state}: it has no file", code=f"job_{job.state}")


def _gone(context: Context, job: Job) -> Refusal:
    """The file may have gone between the look at the store and at the disk."""
    if context.store.get(job.id) is None:
        return Refusal(404, f"there is no video {job.id!r}", code="not_found")
    return Refusal(410, "the file of this video is not here any more", code="expired")


def _matches(header: str | None, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in (header or "").split(",")]
    return etag in tags or "*" in tags
