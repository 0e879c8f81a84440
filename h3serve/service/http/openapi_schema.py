"""What the OpenAPI document says about bodies that are read by hand, and about errors."""

from __future__ import annotations

from typing import Any

from h3serve.core.request import GenerationRequest

_SERVICE_FIELDS: dict[str, Any] = {
    "model": {"type": "string", "description": "the name in /v1/models"},
    "seconds": {"anyOf": [{"type": "string"}, {"type": "number"}], "description": "OpenAI: length; default 4"},
    "size": {"type": "string", "description": "OpenAI: WIDTHxHEIGHT or auto"},
    "input_reference": {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"image_url": {"type": "string"}}, "required": ["image_url"]},
        ],
        "description": "OpenAI: the first frame",
    },
    "priority": {"type": "integer", "description": "higher goes first; default 0"},
    "webhook_url": {"type": "string", "description": "told of the end, with a signature"},
}


def _body_schema() -> dict[str, Any]:
    schema = GenerationRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    schema["properties"] = {**schema["properties"], **_SERVICE_FIELDS}
    schema["required"] = ["prompt"]
    return schema


def _form_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "the same fields; objects and lists as JSON, or the whole JSON body as part `request`",
        "properties": {
            "request": {"type": "string"},
            "prompt": {"type": "string"},
            "input_reference": {"type": "string", "format": "binary"},
        },
        "additionalProperties": True,
    }


CREATE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _body_schema()},
            "multipart/form-data": {"schema": _form_schema()},
        },
    }
}

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
                "allowed": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
    for status, text in {
        400: "The request is wrong; `param` names the field",
        401: "An API key is wanted",
        403: "Not allowed to this key, or on this server",
        404: "There is no such thing",
        409: "Not in this state",
        410: "The file has expired",
        413: "Too large",
        415: "Another content type is wanted",
        422: "It cannot fit this machine; a weight update was refused",
        429: "The queue is full; see Retry-After",
        503: "Not now; see Retry-After",
        507: "The disk is full",
    }.items()
}


def component_schemas() -> dict[str, Any]:
    """The schemas that the request body refers to."""
    schema = GenerationRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    defs: dict[str, Any] = schema.get("$defs", {})
    return defs
