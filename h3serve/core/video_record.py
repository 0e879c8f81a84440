"""What an MP4 says of how it was made: the request without its media, the engine, the checkpoint, the adapters.

What goes in is named field by field, so that nothing gets in by accident: no path, no address, no key, nothing of the
service. Of a given image, video or audio only its kind and role stay; of an adapter's path, the file's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from h3serve.core.request import GenerationRequest

NAME = "h3serve"  # of the value that says which version made it, and by which a record is known
MOST_CHARACTERS = 2**20
# Of the request, as they are; conditions and adapters have their own lists.
AS_THEY_ARE = (
    "task",
    "prompt",
    "seed",
    "sigmas",
    "num_inference_steps",
    "flow_shift",
    "audio_flow_shift",
    "solver",
    "imgvid_cond_noise_aug_for_inference",
    "audio_cond_noise_aug_for_inference",
    "reference_resize_mode",
    "quality",
)
_OF_TARGET = ("short_edge", "aspect_ratio", "duration_seconds")
_OF_CONDITION = ("type", "role", "frame_index", "start_time_seconds")
_OF_ADAPTER = ("strength", "sha256")
_EMPTY: dict[str, Any] = {"target": {}, "conditions": (), "adapters": ()}


def video_record(
    request: GenerationRequest,
    *,
    version: str,
    quality: str,
    checkpoint: Mapping[str, Any] | None,
    adapters: Sequence[Mapping[str, Any]],
) -> str:
    """The record as JSON: `quality` is the engine's, `adapters` have name, strength and sha256."""
    kept = _kept({**request.model_dump(mode="json"), "adapters": adapters})
    known = None if checkpoint is None else _only(checkpoint, ("model", "partition", "sample"))
    record = {NAME: version, "request": kept, "quality": quality, "checkpoint": known}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def request_of_record(text: str) -> dict[str, Any]:
    """The request's fields in a record. ValueError where `text` is none; of media only kinds and roles are there.

    The same fields are taken as are written: a file that somebody else made names no path here either.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError("it is too long")
    try:
        record = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    request = record.get("request") if isinstance(record, dict) and NAME in record else None
    if not isinstance(request, dict):
        raise ValueError("it is no record")
    return _kept(request)


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request what may be written and read. ValueError where lists or objects are none."""
    target, conditions, adapters = (fields.get(name) or empty for name, empty in _EMPTY.items())
    lists = isinstance(target, Mapping) and isinstance(conditions, Sequence) and isinstance(adapters, Sequence)
    if not lists or not all(isinstance(item, Mapping) for item in (*conditions, *adapters)):
        raise ValueError("its target, conditions or adapters are of another kind")
    kept = {**_only(fields, AS_THEY_ARE), "target": _only(target, _OF_TARGET)}
    if conditions:
        kept["conditions"] = [_only(condition, _OF_CONDITION) for condition in conditions]
    if adapters:
        kept["adapters"] = [
            {**_only(adapter, _OF_ADAPTER), "name": re.split(r"[/\\]", str(adapter.get("name")))[-1]}
            for adapter in adapters
        ]
    return kept


def _only(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}
