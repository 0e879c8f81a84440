"""The adapters that requests may name: what the folder holds, and more of them from an admin."""

from __future__ import annotations

import shutil
from pathlib import Path

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from h3serve.core.errors import RequestError
from h3serve.core.settings import ADAPTER_SUFFIX
from h3serve.service.http.admin import RootOf, below
from h3serve.service.http.context import ContextOf, get_caller
from h3serve.service.http.openapi_schema import ERRORS
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Json
from h3serve.system.disk_files import whole_file
from h3serve.system.named_files import named_files, sha256_of

router = APIRouter(prefix="/v1", responses=ERRORS)
_NAME = r"^[\w-][\w .-]{0,99}$"


@router.get("/adapters", dependencies=[Depends(get_caller)])
def list_adapters(context: ContextOf) -> Json:
    """The files of the server's adapter folder, by the names that requests give them."""
    folder = context.settings.adapter_folder
    there = {} if folder is None else named_files(folder, ADAPTER_SUFFIX)
    return {"object": "list", "data": [_adapter(name, path) for name, path in there.items()]}


class NewAdapter(BaseModel):
    """A file that becomes an adapter."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(description="safetensors file, below the server's weights folder")
    name: str = Field(pattern=_NAME, description="what requests will call it: letters, digits, spaces, dots, dashes")


@router.post("/admin/adapters")
def add_adapter(body: NewAdapter, root: RootOf, context: ContextOf) -> Json:
    """Copies a file into the adapter folder; the next request may name it. Refused (409) where the name is taken."""
    folder = context.settings.adapter_folder
    if folder is None:
        raise Refusal(403, "this server has no adapter folder: it was started without --adapter-folder")
    source, target = below(root, body.source, "source", folder=False), folder / f"{body.name}{ADAPTER_SUFFIX}"
    if source.suffix != ADAPTER_SUFFIX:
        raise RequestError("source", body.source, f"a file that ends with {ADAPTER_SUFFIX}")
    if target.exists():
        raise Refusal(409, f"there is an adapter {body.name!r} already", code="name_taken")
    with whole_file(target) as part:
        shutil.copyfile(source, part)
    return {**_adapter(body.name, target), "sha256": sha256_of(target)}


def _adapter(name: str, path: Path) -> Json:
    stat = path.stat()
    return {"id": name, "object": "adapter", "created": int(stat.st_mtime), "bytes": stat.st_size}
