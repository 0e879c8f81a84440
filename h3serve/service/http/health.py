"""Models, health, readiness, metrics."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from h3serve.service.http.context import Context, ContextOf, get_caller
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json

router = APIRouter(responses=ERRORS)
_KEYED = [Depends(get_caller)]


@router.get("/v1/models", dependencies=_KEYED)
def list_models(context: ContextOf) -> Json:
    """The one model of this server with the tasks it serves, under its name and its aliases."""
    return {"object": "list", "data": [_model(context, name) for name in _names(context)]}


@router.get("/v1/models/{name:path}", dependencies=_KEYED)
def get_model(name: str, context: ContextOf) -> Json:
    """The model by name."""
    if name not in _names(context):
        raise Refusal(404, f"there is no model {name[:80]!r}", code="model_not_found")
    return _model(context, name)


@router.get("/health")
def health(context: ContextOf) -> JSONResponse:
    """Whether this process can do its work: 503 when a watching thread, one that helps or the store is dead."""
    dead = [thread.name for thread in (*context.supervisor.staying, *context.helpers) if not thread.is_alive()]
    context.store.counts()
    is_well = context.draining.is_set() or not dead
    return JSONResponse({"status": "ok" if is_well else "failing"}, 200 if is_well else 503)


@router.get("/ready")
def ready(context: ContextOf) -> JSONResponse:
    """Whether every worker has its model loaded and answers, the database too, and jobs are taken."""
    draining, database = context.draining.is_set(), context.store.answers()
    is_ready = context.supervisor.is_ready and database and not draining
    body = {"ready": is_ready, "draining": draining, "database": database, "workers": context.supervisor.states()}
    return JSONResponse(body, 200 if is_ready else 503, None if is_ready else {"Retry-After": "5"})


@router.get("/metrics", response_class=Response, dependencies=_KEYED)
def metrics(context: ContextOf) -> Response:
    """Prometheus text."""
    return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _names(context: Context) -> tuple[str, ...]:
    return context.settings.model_name, *context.settings.aliases


def _model(context: Context, name: str) -> Json:
    return {
        "id": name,
        "root": context.settings.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "MiniMaxAI",
        "tasks": list(context.supervisor.tasks),
        "enhances_prompts": context.settings.enhance.enhance_url is not None,
    }
