"""What only an admin may do: new weights for the served model, more or fewer workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from h3serve.core.errors import RequestError
from h3serve.core.settings import one_partition, partitions_of
from h3serve.service.http.context import AdminOf, Context, ContextOf
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json, new_id
from h3serve.service.workers.messages import UpdateWeights


async def get_root(admin: AdminOf, context: ContextOf) -> Path:
    """The folder that updates come from; raises Refusal 403 for who may not make any."""
    del admin
    if context.settings.weights is None:
        raise Refusal(403, "this server takes no weight updates: it was started without --weights-folder")
    return context.settings.weights


RootOf = Annotated[Path, Depends(get_root)]
router = APIRouter(prefix="/v1/admin", responses=ERRORS)


class WeightUpdate(BaseModel):
    """A checkpoint that replaces a transformer's weights, or some tensors that belong to a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(description="checkpoint folder, below the server's weights folder")
    tensors: str | None = Field(None, description="safetensors file below it: only these weights are replaced")
    partition: Literal["fl2va", "ref2va"] | None = Field(None, description="wanted where both are served")


@router.post("/weights")
def update_weights(body: WeightUpdate, root: RootOf, context: ContextOf) -> Json:
    """Replace weights between two jobs, on every worker or on none; the reply comes when it is done.

    Refused (422) before the first byte is written: then the model is as it was. No job is lost; those that are
    queued run afterwards, with the new weights.
    """
    context.check_open()
    served = partitions_of(context.settings.partition)
    partition = one_partition(body.partition, served, said="this server has the weights of")
    source = str(below(root, body.source, "source", folder=True))
    tensors = None if body.tensors is None else str(below(root, body.tensors, "tensors", folder=False))
    update = UpdateWeights(new_id(), partition, source, tensors, only_check=False)
    made = context.supervisor.updates.make(update)
    return {"object": "weight_update", "source": body.source, "tensors": body.tensors, **made}


@router.get("/weights")
def list_updates(root: RootOf, context: ContextOf) -> Json:
    """The updates made since the server started, and whether one is under way."""
    del root
    updates = context.supervisor.updates
    return {"object": "list", "data": list(updates.made), "in_progress": updates.is_busy}


def below(root: Path, name: str, field: str, *, folder: bool) -> Path:
    """An existing path below `root`, links followed; RequestError for any other."""
    try:
        path = (root / name).resolve(strict=True)
        if path.is_relative_to(root.resolve()) and path.is_dir() == folder:
            return path
    except (OSError, ValueError, RuntimeError):
        pass
    kind = "folder" if folder else "safetensors file"
    raise RequestError(field, name, f"the name of a {kind} below the server's weights folder")


class WorkerCount(BaseModel):
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
def scale_workers(body: WorkerCount, context: ContextOf, admin: AdminOf) -> Json:
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
