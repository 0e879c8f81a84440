"""The fields of the OpenAI videos API as H3 fields (docs/service.md has the table).

A body without `target` and `conditions` is read as OpenAI's: `seconds`, `size` and
`input_reference` become them, and `task` follows from whether a picture is given.
"""

from __future__ import annotations

import re
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.geometry import NAMED_RATIOS
from h3serve.service.body import Body, parse_json
from h3serve.service.job import Json

_SIZE = re.compile(r"(\d{2,5})x(\d{2,5})")
_DEFAULT_SECONDS = 4.0
_RELEASE_EDGE = 768  # what the model was made for; larger pictures become this
_FROM_EDGE = 720
_RATIO_SLACK = 0.03  # 1792x1024 is 7:4 and means 16:9
_TEXT = frozenset(
    {"task", "prompt", "model", "size", "seconds", "webhook_url", "quality", "reference_resize_mode"}
    | {"aspect_ratio", "image_url", "file_id", "input_reference"}
)
_FORM_NAME = re.compile(r"(\w+)\[(\w+)\]")
UPLOAD = "upload:"


def fields_of(body: Body) -> Json:
    """The fields of a body: form parts as JSON values, the `request` part unpacked."""
    if not body.is_form:
        return dict(body.fields)
    fields: Json = {}
    for name, text in body.fields.items():
        if name != "request":
            _put_form_field(fields, name, text)
    if "request" in body.fields:
        fields = _merge(parse_json(body.fields["request"]), fields)
    if any(upload.part == "input_reference" for upload in body.files):
        fields["input_reference"] = UPLOAD + "input_reference"
    return fields


def _put_form_field(fields: Json, name: str, text: str) -> None:
    """`target[short_edge]` goes into the object `target`, as the openai client writes it."""
    match = _FORM_NAME.fullmatch(name)
    if match is None:
        fields[name] = _form_value(name, text)
        return
    outer, inner = match.groups()
    group = fields.setdefault(outer, {})
    if not isinstance(group, dict):
        raise RequestError(name, text, f"{outer} is given twice")
    group[inner] = _form_value(inner, text)


def to_h3(fields: Json) -> Json:
    """H3 fields from `fields`; raises RequestError naming the field as the caller wrote it."""
    fields = dict(fields)
    is_openai = "target" not in fields and "conditions" not in fields
    seconds, size = fields.pop("seconds", None), fields.pop("size", None)
    reference = fields.pop("input_reference", None)
    for name, value in (("seconds", seconds), ("size", size), ("input_reference", reference)):
        if value is not None and not is_openai:
            raise RequestError(name, value, "give either OpenAI's fields or `target` and `conditions`")
    if not is_openai:
        return fields
    if reference is not None:
        uri = _reference_uri(reference)
        fields["conditions"] = [{"type": "image", "uri": uri, "role": "keyframe", "frame_index": 0}]
    task = fields.setdefault("task", "t2va" if reference is None else "fl2va")
    duration = _DEFAULT_SECONDS if seconds is None else _seconds(seconds)
    fields["target"] = {"duration_seconds": duration, **_size(size, task)}
    return fields


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{1,4}(\.\d{1,6})?", value):
        return float(value)
    raise RequestError("seconds", value, 'a number of seconds, such as "8"')


def _size(value: Any, task: Any) -> Json:
    if value is None or value == "auto":
        return {}
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise RequestError("size", value, 'WIDTHxHEIGHT, such as "1280x720", or "auto"')
    width, height = map(int, match.groups())
    edge = min(width, height)
    return {
        "short_edge": _RELEASE_EDGE if edge >= _FROM_EDGE else edge,
        "aspect_ratio": _ratio(width, height, value, task),
    }


def _ratio(width: int, height: int, value: str, task: Any) -> str:
    asked = width / height

    def distance(name: str) -> float:
        across, down = map(int, name.split(":"))
        return abs(asked * down / across - 1)

    nearest = min(NAMED_RATIOS, key=distance)
    if distance(nearest) <= _RATIO_SLACK:
        return nearest
    if task == "fl2va":
        return f"{width}:{height}"
    raise RequestError("size", value, f"a size with a ratio of {', '.join(NAMED_RATIOS)}")


def _reference_uri(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and set(value) == {"image_url"} and isinstance(value["image_url"], str):
        return value["image_url"]
    raise RequestError(
        "input_reference", value, 'a file part, a URL, or {"image_url": URL}; files are not kept here beforehand'
    )


def _form_value(name: str, text: str) -> Any:
    """Form parts are text: numbers, lists and objects are written as JSON."""
    if name in _TEXT:
        return text
    try:
        parsed = parse_json(f'{{"value": {text}}}')
    except RequestError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _merge(first: Json, second: Json) -> Json:
    for name in first.keys() & second.keys():
        raise RequestError(name, second[name], "given both inside `request` and as a part")
    return {**first, **second}
