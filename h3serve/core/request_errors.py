"""One clear sentence out of a pydantic complaint: which field, which value, what is allowed."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from h3serve.core.errors import RequestError
from h3serve.core.limits import LIMITS

_PROMPT = f"a non-empty text of at most {LIMITS.max_prompt_tokens} tokens and {LIMITS.max_prompt_characters} characters"
_SHIFT = f"a number from {LIMITS.min_shift:g} to {LIMITS.max_shift:g}"

ALLOWED = {
    "task": "one of t2va, fl2va, ref2va",
    "prompt": _PROMPT,
    "conditions": "a list of conditions, each with type, uri, role",
    "conditions.type": "one of image, video, video_audio, audio",
    "conditions.uri": "a non-empty text",
    "conditions.role": "one of keyframe, reference",
    "conditions.frame_index": "a whole number: 0 for the first frame, -1 for the last",
    "conditions.start_time_seconds": "a number of seconds >= 0",
    "target": "an object with short_edge, aspect_ratio, duration_seconds",
    "target.short_edge": f"a whole number from {LIMITS.min_short_edge} to {LIMITS.max_short_edge}; 768 is recommended",
    "target.aspect_ratio": "auto or W:H, such as 16:9",
    "target.duration_seconds": f"a number from {LIMITS.min_seconds:g} to {LIMITS.max_seconds:g}",
    "seed": "a whole number from 0 to 2^63-1",
    "num_inference_steps": f"a whole number from 1 to {LIMITS.max_steps}",
    **dict.fromkeys(("flow_shift", "audio_flow_shift"), _SHIFT),
    "imgvid_cond_noise_aug_for_inference": "a number from 0 to 1",
    "audio_cond_noise_aug_for_inference": "a number from 0 to 1",
    "reference_resize_mode": "one of match, max, diffusers",
    "quality": "one of exact, lossless, fast",
}

_GUIDANCE = "the model is guidance-distilled: leave this field out"
# Fields that other video models have; the reason is more useful than "unknown".
WHY_NOT = {
    **dict.fromkeys(("guidance_scale", "guidance_scale_2", "true_cfg_scale", "audio_guidance_scale"), _GUIDANCE),
    "negative_prompt": "the model takes no negative prompt: leave this field out",
    "fps": "the frame rate is always 24: leave this field out",
    "num_frames": "the length follows from target.duration_seconds: leave this field out",
    "n": "one request makes one video: send one request per video, each with its own seed",
}


def request_error(error: ValidationError) -> RequestError:
    """The first complaint as a RequestError; unknown fields go before wrong values."""
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] != "extra_forbidden")
    first = details[0]
    field = dotted(first["loc"])
    return RequestError(field or "request", _value(first), _allowed(first))


def dotted(loc: tuple[int | str, ...]) -> str:
    """('conditions', 1, 'uri') -> 'conditions[1].uri'."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _value(detail: ErrorDetails) -> Any:
    return None if detail["type"] == "missing" else detail["input"]


def _allowed(detail: ErrorDetails) -> str:
    names = [part for part in detail["loc"] if isinstance(part, str)]
    key = ".".join(names)
    if detail["type"] == "extra_forbidden":
        parent = names[:-1]
        known = ", ".join(sorted(k.rsplit(".", 1)[-1] for k in ALLOWED if k.split(".")[:-1] == parent))
        return WHY_NOT.get(names[-1], f"unknown field; known here are {known}")
    if detail["type"] == "missing":
        return f"required: {ALLOWED.get(key, 'see the documentation')}"
    return ALLOWED.get(key, detail["msg"])
