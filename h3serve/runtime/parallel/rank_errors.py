"""Errors as JSON, so that ranks can tell each other without pickling objects."""

from __future__ import annotations

import json
from typing import Any

from h3serve.core import errors
from h3serve.core.errors import (
    H3Error,
    OutOfMemoryError,
    RankError,
    RequestError,
    WorkerError,
    broken_part,
    is_out_of_memory,
)


def to_json(error: BaseException, rank: int) -> dict[str, Any]:
    """What the other ranks need to raise the same; anything but an H3Error becomes a kind of WorkerError."""
    if isinstance(error, RequestError):
        return {"kind": _kind(error), "arguments": [error.field, _plain(error.value), error.allowed]}
    if isinstance(error, H3Error):
        return {"kind": _kind(error), "arguments": [str(error)]}
    words = f"rank {rank}: {type(error).__name__}: {error}"
    return {"kind": _unforeseen(error).__name__, "arguments": [words]}


def from_json(described: dict[str, Any]) -> H3Error:
    """The error that `to_json` described."""
    kind = getattr(errors, str(described["kind"]))
    assert issubclass(kind, H3Error)
    return kind(*described["arguments"])


def _unforeseen(error: BaseException) -> type[WorkerError]:
    if is_out_of_memory(error):
        return OutOfMemoryError
    return RankError if broken_part(error) is None else WorkerError


def _kind(error: H3Error) -> str:
    """The nearest class that every rank knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))


def _plain(value: object) -> object:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
