"""A request from a file and/or flags: flags win over the file; relative paths are relative to the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.request import GenerationRequest, parse_request
from h3serve.media.read.probe import probe_media
from h3serve.media.sources.open_source import open_source

_TARGET = ("short_edge", "aspect_ratio", "duration_seconds")
SECONDS = 5.0  # of a clip that is asked for by flags alone


def read_body(path: Path | None) -> dict[str, Any]:
    """The JSON object in `path` with file references made absolute, or an empty one."""
    if path is None:
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError("request file", str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError("request file", str(path), f"must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("request file", str(path), "must hold one JSON object")
    conditions = body.get("conditions")
    if isinstance(conditions, list):
        body["conditions"] = [_beside(c, path.parent) for c in conditions]
    return body


def build_request(
    body: Mapping[str, Any],
    fields: Mapping[str, Any],
    *,
    keyframes: Mapping[int, str | None],
    references: Sequence[str],
) -> GenerationRequest:
    """`body` overridden by the flags that were given (None: not given); the task follows from the media.

    Without a body a clip lasts `SECONDS`, unless a reference's sound may decide it.
    """
    merged = dict(body)
    target = body.get("target")
    sizes = dict(target) if isinstance(target, dict) else {}
    for name, value in fields.items():
        if value is not None:
            (sizes if name in _TARGET else merged)[name] = value
    added = [_keyframe(uri, index) for index, uri in keyframes.items() if uri is not None]
    added += [_reference(text) for text in references]
    if added:
        merged["conditions"] = added
    merged.setdefault("task", _task(added))
    if not body and merged["task"] != "ref2va":
        sizes.setdefault("duration_seconds", SECONDS)
    if sizes:
        merged["target"] = sizes
    return parse_request(merged)


def _keyframe(uri: str, index: int) -> dict[str, Any]:
    return {"type": "image", "role": "keyframe", "frame_index": index, "uri": uri}


def _reference(text: str) -> dict[str, Any]:
    """`picture.png`, whose kind is looked up in the file, or `video=https://...`."""
    kind, equals, uri = text.partition("=")
    if not (equals and kind in ("image", "video", "video_audio", "audio")):
        uri = text
        with open_source(uri, field="--reference") as file:
            kind = probe_media(file).kind
    return {"type": kind, "role": "reference", "uri": uri}


def _task(conditions: Sequence[Mapping[str, Any]]) -> str:
    roles = {c["role"] for c in conditions}
    return "ref2va" if "reference" in roles else "fl2va" if roles else "t2va"


def _beside(condition: Any, folder: Path) -> Any:
    """Plain relative paths are taken from the request file's folder."""
    if not isinstance(condition, dict) or not isinstance(condition.get("uri"), str):
        return condition
    uri = condition["uri"]
    if not uri or ":" in uri.split("/", 1)[0] or Path(uri).is_absolute():
        return condition
    return {**condition, "uri": str(folder / uri)}
