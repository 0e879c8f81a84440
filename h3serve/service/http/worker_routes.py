"""The workers of a server: who they are, and how many there should be."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from h3serve.service.http.context import AdminOf, Context, ContextOf
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.jobs.job import Json

router = APIRouter(prefix="/v1/admin", responses=ERRORS)


class Scale(BaseModel):
    """How many workers there should be, and on which device new ones run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    count: int
    device: str | None = None


@router.get("/workers")
def list_workers(context: ContextOf, admin: AdminOf) -> Json:
    """Every worker and its state; those that leave, or could not load, too."""
    del admin
    return _listed(context)


@router.put("/workers")
def scale_workers(body: Scale, context: ContextOf, admin: AdminOf) -> Json:
    """Change how many workers there are, without waiting for it: those that go finish their job first."""
    del admin
    context.check_open()
    context.supervisor.scale(body.count, body.device)
    return _listed(context)


def _listed(context: Context) -> Json:
    workers = [
        {
            "name": slot.name,
            "device": slot.device,
            "state": str(slot.state),
            "leaving": slot.leaves,
            "restarts": slot.restarts,
            "failure": slot.failure,
        }
        for slot in context.supervisor.slots
    ]
    return {"object": "list", "data": workers}
