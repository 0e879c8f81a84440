"""Fields that clients of other servers send: values that change nothing, and other names for what H3 has.

docs/peers.md has the table. What would change the video in a way that H3 has not stays in the fields and is
refused by name.
"""

from __future__ import annotations

from typing import Any

from h3serve.core.errors import RequestError
from h3serve.service.jobs.job import Json

# The one value of each that asks for what H3 does anyway.
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("n", "num_outputs", "num_outputs_per_prompt"), 1),
    **dict.fromkeys(("guidance_scale", "guidance_scale_2", "true_cfg_scale", "audio_guidance_scale"), 1),
    **dict.fromkeys(("enable_teacache", "enable_frame_interpolation", "enable_upscaling", "enhance_prompt"), False),
    "fps": 24,
    "negative_prompt": "",
    "generate_sound": True,
    "rollout": False,
    "output_mode": "decoded_files",
}
_GROUPS = ("extra_params", "extra_body", "video_params")  # their members count as fields of the body
_REFERENCES = ("input_reference", "image_reference", "reference_url")
# Bodies with one of these may name media, which are fetched and probed away from the event loop.
MAY_NAME_MEDIA = ("conditions", *_REFERENCES, *_GROUPS)


def without_peer_fields(fields: Json) -> Json:
    """`fields` with groups opened, references under one name, and what changes nothing left out."""
    fields = _one_reference(_opened(fields))
    user = fields.pop("user", None)
    if user is not None and not isinstance(user, str):
        raise RequestError("user", user, "a text; it changes nothing here")
    return {name: value for name, value in fields.items() if not _changes_nothing(name, value)}


def _changes_nothing(name: str, value: Any) -> bool:
    if name not in _NEUTRAL:
        return False
    if value is None:
        return True
    neutral = _NEUTRAL[name]
    if isinstance(value, str):
        return bool(value.strip() == neutral)
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _opened(fields: Json) -> Json:
    found = {name: value for name, value in fields.items() if name not in _GROUPS}
    for group in _GROUPS:
        members = fields.get(group)
        if members is None:
            continue
        if not isinstance(members, dict):
            raise RequestError(group, members, "an object with fields")
        for name, value in members.items():
            if name in found:
                raise RequestError(name, value, f"given both inside {group} and beside it")
            found[name] = value
    return found


def _one_reference(fields: Json) -> Json:
    given = [name for name in _REFERENCES if fields.get(name) is not None]
    if len(given) > 1:
        raise RequestError(given[1], fields[given[1]], f"{given[0]} is given too: they are one field")
    rest = {name: value for name, value in fields.items() if name not in _REFERENCES}
    return {**rest, "input_reference": fields[given[0]]} if given else rest
