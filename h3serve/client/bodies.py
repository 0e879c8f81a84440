"""A request as the body of a call: media that are files here are sent along."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.request import GenerationRequest

Parts = list[tuple[str, tuple[str | None, bytes | str]]]


def body_of(request: GenerationRequest | Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of httpx: JSON, or multipart with the files that conditions name. RequestError for a file.

    The bodies are in memory, so that the same call can be made again.
    """
    if isinstance(request, GenerationRequest):
        request = request.model_dump(mode="json", exclude_none=True)
    fields = json.loads(json.dumps({**request, **more}))  # a copy at every depth
    files: Parts = []
    for number, condition in enumerate(fields.get("conditions") or ()):
        if (file := _file_of(condition)) is not None:
            try:
                content = file.read_bytes()
            except OSError as error:
                said = f"cannot be read: {error.strerror}"
                raise RequestError(f"conditions[{number}].uri", str(file), said) from None
            files.append((f"file{number}", (file.name, content)))
            condition["uri"] = f"upload:file{number}"
    if not files:
        return {"json": fields}
    return {"files": [("request", (None, json.dumps(fields))), *files]}


def new_key() -> str:
    """An `Idempotency-Key`: with it a call that is made twice makes one video."""
    return uuid.uuid4().hex


def _file_of(condition: Any) -> Path | None:
    """The file here that a condition names: a path, or file:; None for what the server finds itself."""
    uri = condition.get("uri") if isinstance(condition, dict) else None
    if not isinstance(uri, str):
        return None
    if uri.startswith("file://"):
        return Path(uri.removeprefix("file://"))
    return None if ":" in uri.split("/", 1)[0] else Path(uri).expanduser()
