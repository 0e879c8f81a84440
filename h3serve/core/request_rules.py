"""Rules that tie fields of a request together (spec/tasks_and_validation.md 8.1-8.3).

What needs the media themselves (durations, sizes, streams) is checked by `Plan.resolve`.
"""

from __future__ import annotations

from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.geometry import parse_ratio
from h3serve.core.limits import KEYFRAME_SIGNATURES, LIMITS
from h3serve.core.prompt import check_prompt

# The request type is `Any` here: request.py imports this file, and rooms have no cycles.
Request = Any


def check_request(request: Request) -> None:
    """Raises a RequestError for the first rule that is broken."""
    check_prompt(request.prompt)
    for index, condition in enumerate(request.conditions):
        _check_condition(condition, f"conditions[{index}]")
    _check_task(request)
    _check_counts(request)
    _check_target(request)


def _check_condition(condition: Any, field: str) -> None:
    keyframe = condition.role == "keyframe"
    if not condition.uri.strip():
        raise RequestError(f"{field}.uri", condition.uri, "a non-empty text")
    if keyframe and condition.type != "image":
        raise RequestError(f"{field}.type", condition.type, "a keyframe is an image")
    if keyframe and condition.frame_index is None:
        raise RequestError(
            f"{field}.frame_index",
            None,
            "required for a keyframe: 0 for the first frame, -1 for the last",
        )
    if keyframe and condition.frame_index not in (0, -1):
        raise RequestError(
            f"{field}.frame_index",
            condition.frame_index,
            "0 for the first frame or -1 for the last; the model has no middle keyframes",
        )
    if not keyframe and condition.frame_index is not None:
        raise RequestError(f"{field}.frame_index", condition.frame_index, "only a keyframe has a frame_index")
    if condition.start_time_seconds is not None and condition.type not in ("video", "video_audio"):
        raise RequestError(
            f"{field}.start_time_seconds",
            condition.start_time_seconds,
            "only a video or video_audio reference has a start time",
        )


def _check_task(request: Request) -> None:
    signature = tuple(c.frame_index for c in request.keyframes)
    if request.task == "t2va" and request.conditions:
        raise RequestError(
            "conditions",
            f"{len(request.conditions)} given",
            "t2va takes none; use fl2va for keyframes, ref2va for references",
        )
    if request.task == "fl2va" and request.references:
        raise RequestError(
            "conditions",
            f"{len(request.references)} with role reference",
            "fl2va takes keyframes only; use ref2va for references",
        )
    if request.task == "fl2va" and not signature:
        raise RequestError("conditions", "none given", "fl2va needs a first and/or a last keyframe")
    if signature and signature not in KEYFRAME_SIGNATURES:
        raise RequestError(
            "conditions",
            f"keyframes at {list(signature)}",
            "keyframes must be exactly [0], [-1] or [0, -1], in that order",
        )
    if request.task == "ref2va" and not request.references:
        raise RequestError("conditions", "no reference", "ref2va needs at least one condition with role reference")


def _check_counts(request: Request) -> None:
    """Published limits; a soundtrack inside a video is not an audio reference."""

    def count(kind: str) -> int:
        return sum(c.type.startswith(kind) for c in request.conditions)

    images, videos, audios = count("image"), count("video"), count("audio")
    for name, number, limit in (
        ("image", images, LIMITS.images),
        ("video", videos, LIMITS.videos),
        ("audio", audios, LIMITS.audios),
        ("file", len(request.conditions), LIMITS.files),
    ):
        if number > limit:
            raise RequestError("conditions", f"{number} {name}s", f"at most {limit} {name}s in one request")
    if request.task == "ref2va" and not any(c.is_visual for c in request.references):
        raise RequestError(
            "conditions",
            "audio references alone",
            "audio needs at least one image or video reference beside it",
        )


def _check_target(request: Request) -> None:
    target = request.target
    if target.aspect_ratio != "auto":
        parse_ratio(target.aspect_ratio)
    allowed = f"a number from {LIMITS.min_seconds:g} to {LIMITS.max_seconds:g}"
    if target.duration_seconds is None:
        bearing = [c for c in request.references if c.type != "image"]
        if request.task != "ref2va" or len(bearing) != 1:
            raise RequestError(
                "target.duration_seconds",
                None,
                f"required: {allowed} (only ref2va with exactly one sound-bearing reference may leave it out)",
            )
    elif not LIMITS.min_seconds <= target.duration_seconds <= LIMITS.max_seconds:
        raise RequestError("target.duration_seconds", target.duration_seconds, allowed)
