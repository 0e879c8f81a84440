"""A job as JSON: the fields of OpenAI's video object first, then what H3 adds."""

from __future__ import annotations

import math
from typing import Any

from h3serve.service.jobs.error_replies import scrub
from h3serve.service.jobs.job import Job, Json, State
from h3serve.service.jobs.live_progress import Snapshot
from h3serve.service.service_settings import ServiceSettings

# Percent at which a stage begins and ends, as far as one can know before.
_STAGES = {
    "start": (0, 1),
    "read media": (1, 2),
    "encode text": (2, 3),
    "encode conditions": (3, 5),
    "denoise": (5, 90),
    "decode audio": (90, 91),
    "decode video": (91, 99),
    "save": (99, 99),
}


def job_view(job: Job, settings: ServiceSettings, snapshot: Snapshot | None = None) -> Json:
    """The reply for a job; `snapshot` is its progress while it runs."""
    running = snapshot if job.state is State.IN_PROGRESS else None
    return {
        "id": job.id,
        "object": "video",
        "model": settings.model_name,
        "status": str(job.state),
        "progress": percent(job, running),
        "created_at": int(job.created_at),
        "completed_at": _seconds(job.finished_at) if job.state is State.COMPLETED else None,
        "expires_at": _expires_at(job, settings),
        "prompt": job.request.get("prompt"),
        "seconds": _whole_seconds(job),
        "duration_seconds": job.plan.get("seconds"),
        "size": f"{job.plan.get('width')}x{job.plan.get('height')}",
        "error": _error(job),
        "remixed_from_video_id": None,
        "task": job.task,
        "priority": job.priority,
        "attempts": job.attempts,
        "cancel_requested": job.cancel_requested,
        "started_at": _seconds(job.started_at),
        "finished_at": _seconds(job.finished_at),
        "stage": running.stage if running else None,
        "step": running.step if running else None,
        "steps": running.steps if running else None,
        "seconds_left": running.seconds_left if running else None,
        "request": repeatable(job),
        "plan": job.plan,
        "stats": job.stats,
        "files": {name: {k: f[k] for k in ("bytes", "type", "sha256")} for name, f in (job.files or {}).items()},
    }


def repeatable(job: Job) -> Json:
    """The frozen request as a body that can be sent again: inputs are named through this job."""
    body = _without_none(job.request)
    for condition in body.get("conditions", ()):
        condition["uri"] = f"job:{job.id}/{condition['uri']}"
    return body


def _without_none(fields: Json) -> Json:
    """A copy, at every depth: what was not given is not shown as given."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(item) for item in value]
        return _without_none(value) if isinstance(value, dict) else value

    return {name: clean(value) for name, value in fields.items() if value is not None}


def percent(job: Job, snapshot: Snapshot | None) -> int:
    """0 to 100; 100 only when the file can be fetched."""
    if job.state in (State.COMPLETED, State.EXPIRED):
        return 100
    if snapshot is None:
        return 0
    low, high = _STAGES.get(snapshot.stage, (0, 1))
    return low + (high - low) * snapshot.step // max(1, snapshot.steps)


def _whole_seconds(job: Job) -> str:
    """The whole seconds nearest to what was asked for: clients read this field with `int()`."""
    asked = job.request.get("target", {}).get("duration_seconds")
    return str(math.floor((asked if asked is not None else job.plan.get("seconds", 0)) + 0.5))


def _error(job: Job) -> Json | None:
    if job.error_code is None:
        return None
    return {"code": job.error_code, "message": scrub(job.error or "")}


def _expires_at(job: Job, settings: ServiceSettings) -> int | None:
    kept_s = settings.retention.files_s
    if job.state not in (State.COMPLETED, State.EXPIRED) or job.finished_at is None or kept_s is None:
        return None
    return int(job.finished_at + kept_s)


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
