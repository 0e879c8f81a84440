"""A body's fields as JSON values: form parts are text, and clients flatten objects and lists into their names.

`target[short_edge]`      a member of an object
`conditions[0][type]`     a member of a numbered item
`conditions[][type]`      that member of every item in turn, as the openai client writes a list of objects
`request`                 a whole JSON body, to which other parts may add
"""

from __future__ import annotations

import re
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.service.http.body import Body
from h3serve.service.http.json_body import parse_json
from h3serve.service.jobs.job import Json

UPLOAD = "upload:"
_NAME = re.compile(r"(\w+)((?:\[\w*\])+)")
_STEP = re.compile(r"\[(\w*)\]")
_MAX_DEPTH = 4
# Members whose text is taken as it is; all others are read as JSON where they are JSON.
_TEXT = frozenset(
    {
        "task",
        "prompt",
        "model",
        "name",
        "sha256",
        "size",
        "seconds",
        "user",
        "webhook_url",
        "quality",
        "reference_resize_mode",
    }
    | {"solver", "aspect_ratio", "type", "uri", "role", "image_url", "url", "file_id", "negative_prompt"}
    | {"input_reference", "image_reference", "reference_url"}
)


def fields_of(body: Body) -> Json:
    """The fields of `body`; raises RequestError for parts that are given twice or do not fit together."""
    if not body.is_form:
        return dict(body.fields)
    parts = {name: text for name, text in body.fields.items() if name != "request"}
    fields = _unflatten(parts)
    if "request" in body.fields:
        fields = _merge(parse_json(body.fields["request"]), fields)
    return _with_uploaded_reference(fields, body)


def _unflatten(parts: dict[str, str | list[str]]) -> Json:
    """Nested values from names with brackets."""
    tree: Json = {}
    lengths: dict[str, int] = {}
    for name, text in parts.items():
        path = _path(name)
        if len(path) > 1 and path[0] in parts:
            raise RequestError(path[0], name, f"{path[0]} is given twice, whole and in members")
        if "" not in path:
            assert isinstance(text, str)
            _put(tree, path, _value(path[-1], text), name)
            continue
        values = text if isinstance(text, list) else [text]
        if lengths.setdefault(path[0], len(values)) != len(values):
            allowed = "every item needs the same members to be sent this way; send the list as JSON"
            raise RequestError(path[0], f"{len(values)} of {name}", allowed)
        for number, value in enumerate(values):
            steps = [step or str(number) for step in path]
            _put(tree, steps, _value(path[-1], value), name)
    return {name: _with_lists(value) for name, value in tree.items()}


def _path(name: str) -> list[str]:
    match = _NAME.fullmatch(name)
    path = [name] if match is None else [match[1], *_STEP.findall(match[2])]
    is_odd = match is None and "[]" in name
    if is_odd or len(path) > _MAX_DEPTH or path.count("") > 1:
        raise RequestError(name, "this name", "send lists and objects inside each other as JSON")
    return path


def _put(tree: Json, path: list[str], value: Any, name: str) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise RequestError(name, value, f"{path[0]} is given twice")
    if path[-1] in tree:
        raise RequestError(name, value, f"{path[0]} is given twice")
    tree[path[-1]] = value


def _with_lists(value: Any) -> Any:
    """A copy in which objects whose members are numbered 0, 1, 2, … are lists."""
    if not isinstance(value, dict):
        return value
    items = {name: _with_lists(item) for name, item in value.items()}
    numbers = [str(number) for number in range(len(items))]
    return [items[number] for number in numbers] if items and items.keys() == set(numbers) else items


def _value(name: str, text: str) -> Any:
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


def _with_uploaded_reference(fields: Json, body: Body) -> Json:
    """A file part `input_reference` is the field of that name, unless conditions name the file themselves."""
    if "conditions" in fields or all(upload.part != "input_reference" for upload in body.files):
        return fields
    if "input_reference" in fields:
        raise RequestError("input_reference", fields["input_reference"], "given both as text and as a file")
    return {**fields, "input_reference": UPLOAD + "input_reference"}
