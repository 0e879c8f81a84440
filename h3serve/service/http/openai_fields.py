"""The fields of the OpenAI videos API as H3 fields (docs/peers.md has the table).

A body without `target` and `conditions` is read as OpenAI's: `seconds` or `num_frames`, `size` or
`width` and `height`, and `input_reference` become them, and `task` follows from whether an image is given.
"""

from __future__ import annotations

import math
import re
from typing import Any

from h3serve.core.errors import RequestError
from h3serve.core.geometry import (
    FPS,
    RELEASED_SIZES,
    Size,
    SizeRules,
    aligned_frames,
    canvas_size,
)
from h3serve.core.limits import LIMITS
from h3serve.service.jobs.job import Json

_SIZE = re.compile(r"([1-9]\d{1,4})x([1-9]\d{1,4})")
_SECONDS = re.compile(r"\d{1,4}(\.\d{1,6})?")
_DEFAULT_SECONDS = 4.0
_RELEASE_EDGE = 768  # what the model was made for; larger videos become this
_FROM_EDGE = 720
_NAMES = ("seconds", "num_frames", "size", "width", "height", "input_reference")
_FIRST_FRAMES = aligned_frames(math.ceil(LIMITS.min_seconds * FPS))
_LAST_FRAMES = aligned_frames(math.floor(LIMITS.max_seconds * FPS))


def to_h3(fields: Json, rules: SizeRules = RELEASED_SIZES) -> Json:
    """H3 fields from `fields`; raises RequestError naming the field as the caller wrote it."""
    given = {name: fields[name] for name in _NAMES if fields.get(name) is not None}
    rest = {name: value for name, value in fields.items() if name not in _NAMES}
    if "target" in fields or "conditions" in fields:
        for name, value in given.items():
            raise RequestError(name, value, "give either OpenAI's fields or `target` and `conditions`")
        return rest
    if "input_reference" in given:
        uri = _reference_uri(given["input_reference"])
        rest["conditions"] = [{"type": "image", "uri": uri, "role": "keyframe", "frame_index": 0}]
    rest.setdefault("task", "fl2va" if "conditions" in rest else "t2va")
    rest["target"] = {"duration_seconds": _duration(given), **_canvas(given, rules)}
    return rest


def _duration(given: Json) -> float:
    if "num_frames" in given:
        if "seconds" in given:
            raise RequestError("num_frames", given["num_frames"], "seconds is given too: leave one of them out")
        return _seconds_of(given["num_frames"])
    return _seconds(given["seconds"]) if "seconds" in given else _DEFAULT_SECONDS


def _seconds(value: Any) -> float:
    if isinstance(value, str) and _SECONDS.fullmatch(value):
        value = float(value)
    low, high = LIMITS.min_seconds, LIMITS.max_seconds
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError("seconds", value, f'a number of seconds from {low:g} to {high:g}, such as "8"')
    return float(value)


def _seconds_of(frames: Any) -> float:
    """The duration whose aligned length is `frames`; the longest one is asked for as 15 s."""
    is_whole = isinstance(frames, int) and not isinstance(frames, bool)
    if not is_whole or not _FIRST_FRAMES <= frames <= _LAST_FRAMES or aligned_frames(frames) != frames:
        allowed = f"H3 makes 17n+5 frames, from {_FIRST_FRAMES} to {_LAST_FRAMES}: {_FIRST_FRAMES}, 124, 141 and so on"
        raise RequestError("num_frames", frames, allowed)
    return float(min(frames / FPS, LIMITS.max_seconds))


def _canvas(given: Json, rules: SizeRules) -> Json:
    if "width" in given or "height" in given:
        return _exact_canvas(given, rules)
    size = given.get("size", "auto")
    if size == "auto":
        return {}
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise RequestError("size", size, 'WIDTHxHEIGHT, such as "1280x720", or "auto"')
    width, height = int(match[1]), int(match[2])
    edge = min(width, height)
    if not LIMITS.min_ratio <= width / height <= LIMITS.max_ratio or edge < LIMITS.min_short_edge:
        allowed = (
            f"a ratio of width to height from 1:4 to 4:1, and {LIMITS.min_short_edge} pixels or more at the short edge"
        )
        raise RequestError("size", size, allowed)
    is_canvas = _nearest_canvas((width, height), rules) == (width, height)
    return _target((width, height), edge if is_canvas or edge < _FROM_EDGE else _RELEASE_EDGE)


def _exact_canvas(given: Json, rules: SizeRules) -> Json:
    """`width` and `height` are pixels, not a wish: only a canvas that exists is taken."""
    if "size" in given:
        raise RequestError("size", given["size"], "width and height are given too: leave one of them out")
    for name in ("width", "height"):
        value = given.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 99999:
            raise RequestError(name, value, "width and height are whole numbers of pixels, given together")
    size = given["width"], given["height"]
    if not LIMITS.min_ratio <= size[0] / size[1] <= LIMITS.max_ratio or min(size) < LIMITS.min_short_edge:
        raise RequestError("width", f"{size[0]}x{size[1]}", "a canvas from 1:4 to 4:1, at least 64 pixels on each side")
    near = _nearest_canvas(size, rules)
    if near != size:
        raise RequestError(
            "width", f"{size[0]}x{size[1]}", f"no canvas of the model; the nearest is {near[0]}x{near[1]}"
        )
    return _target(size, min(size))


def _nearest_canvas(size: Size, rules: SizeRules) -> Size:
    return canvas_size(size[0] / size[1], min(size), rules)


def _target(size: Size, short_edge: int) -> Json:
    common = math.gcd(*size)
    return {"short_edge": short_edge, "aspect_ratio": f"{size[0] // common}:{size[1] // common}"}


def _reference_uri(value: Any) -> str:
    """The URI in any of the forms that clients send."""
    found = value
    if (
        isinstance(found, dict)
        and found.get("type", "image_url") == "image_url"
        and found.keys() <= {"type", "image_url"}
    ):
        found = found.get("image_url")
        if isinstance(found, dict) and found.keys() == {"url"}:
            found = found["url"]
    if isinstance(found, str) and found:
        return found
    allowed = (
        'a file part, a URL, {"image_url": URL} or {"image_url": {"url": URL}}; files are not kept here beforehand'
    )
    raise RequestError("input_reference", value, allowed)
