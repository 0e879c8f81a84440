"""The request: frozen values with the field names of the published H3 requests (spec/tasks_and_validation.md 8.1-8.3).

An unknown field is an error; nothing is accepted and then ignored. `parse_request` is the one door: it turns the first
complaint of the validation library into a RequestError that names the field. What needs the media themselves
(durations, sizes, streams) is checked by `Plan.resolve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from h3serve.core.errors import RequestError
from h3serve.core.geometry import parse_ratio
from h3serve.core.limits import (
    DEFAULT_AUDIO_CONDITION_LEVEL,
    DEFAULT_SEED,
    DEFAULT_STEPS,
    DEFAULT_VISUAL_CONDITION_LEVEL,
    KEYFRAME_SIGNATURES,
    LIMITS,
    Quality,
    Solver,
    Task,
)
from h3serve.core.prompt import check_prompt
from h3serve.core.request_values import (
    SECONDS,
    SIGMAS,
    AdapterChoice,
    Condition,
    Level,
    ResizeMode,
    Shift,
    Sigmas,
    Target,
    Value,
    any_of,
)

_PROMPT = f"a non-empty text of at most {LIMITS.max_prompt_tokens} tokens and {LIMITS.max_prompt_characters} characters"


class GenerationRequest(Value):
    """One video with its soundtrack. `num_inference_steps` counts model evaluations."""

    task: Annotated[Task, Field(description=any_of(Task))]
    prompt: Annotated[str, Field(strict=True, max_length=LIMITS.max_prompt_characters, description=_PROMPT)]
    conditions: Annotated[
        tuple[Condition, ...], Field(description="a list of conditions, each with type, uri, role")
    ] = ()
    target: Annotated[Target, Field(description="an object with short_edge, aspect_ratio, duration_seconds")] = Target()
    seed: Annotated[
        int, Field(strict=True, ge=0, le=LIMITS.max_seed, description="a whole number from 0 to 2^63-1")
    ] = DEFAULT_SEED
    sigmas: Annotated[
        Sigmas | None, Field(description="an object with video and audio, two lists of equally many sigmas")
    ] = None  # None: from num_inference_steps and the shifts
    num_inference_steps: Annotated[
        int, Field(strict=True, ge=1, le=LIMITS.max_steps, description=f"a whole number from 1 to {LIMITS.max_steps}")
    ] = DEFAULT_STEPS
    flow_shift: Shift = None  # None: the checkpoint's own
    audio_flow_shift: Shift = None
    solver: Annotated[Solver, Field(description=any_of(Solver))] = "euler"
    adapters: Annotated[
        tuple[AdapterChoice, ...],
        Field(
            max_length=LIMITS.adapters,
            description=f"a list of at most {LIMITS.adapters} adapters, each with name and strength",
        ),
    ] = ()
    imgvid_cond_noise_aug_for_inference: Level = DEFAULT_VISUAL_CONDITION_LEVEL
    audio_cond_noise_aug_for_inference: Level = DEFAULT_AUDIO_CONDITION_LEVEL
    reference_resize_mode: Annotated[ResizeMode, Field(description=any_of(ResizeMode))] = "diffusers"
    quality: Annotated[Quality | None, Field(description=any_of(Quality))] = None  # None: the engine's

    @model_validator(mode="before")
    @classmethod
    def _take_loras(cls, fields: Any) -> Any:
        """`loras` is what some clients call adapters."""
        match fields:
            case {"loras": _, "adapters": _}:
                raise RequestError("loras", fields["loras"], "the same as adapters: leave one of them out")
            case {"loras": loras}:
                return {**{name: value for name, value in fields.items() if name != "loras"}, "adapters": loras}
        return fields

    @model_validator(mode="before")
    @classmethod
    def _count_sigmas(cls, fields: Any) -> Any:
        """Explicit sigmas count the evaluations of a request that does not."""
        match fields:
            case {"num_inference_steps": _}:
                pass
            case {"sigmas": {"video": [_, *after]}} | {"sigmas": Sigmas(video=(_, *after))}:
                return {**fields, "num_inference_steps": len(after)}
        return fields

    @model_validator(mode="after")
    def _check(self) -> GenerationRequest:
        check_prompt(self.prompt)
        for index, condition in enumerate(self.conditions):
            _check_condition(condition, f"conditions[{index}]")
        _check_task(self)
        _check_counts(self)
        _check_target(self)
        _check_sigmas(self)
        _check_adapters(self)
        return self

    @property
    def keyframes(self) -> tuple[Condition, ...]:
        """Conditions with role keyframe, in request order."""
        return tuple(c for c in self.conditions if c.role == "keyframe")

    @property
    def references(self) -> tuple[Condition, ...]:
        """Conditions with role reference, in request order (the order is semantic)."""
        return tuple(c for c in self.conditions if c.role == "reference")

    @property
    def condition_levels(self) -> tuple[float, float]:
        """(visual, audio): the timesteps near 1, clean, at which conditions are held."""
        return self.imgvid_cond_noise_aug_for_inference, self.audio_cond_noise_aug_for_inference


def parse_request(fields: Mapping[str, Any] | GenerationRequest) -> GenerationRequest:
    """A GenerationRequest from a JSON-like mapping, or a RequestError naming the first wrong field."""
    if isinstance(fields, GenerationRequest):
        return fields
    try:
        return GenerationRequest.model_validate(fields)
    except ValidationError as error:
        raise _request_error(error) from None


def _check_condition(condition: Condition, field: str) -> None:
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


def _check_task(request: GenerationRequest) -> None:
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


def _check_counts(request: GenerationRequest) -> None:
    """Holds the published limits of numbers; a soundtrack inside a video is no audio reference."""

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


def _check_target(request: GenerationRequest) -> None:
    target = request.target
    if target.aspect_ratio != "auto":
        parse_ratio(target.aspect_ratio)
    if target.duration_seconds is None:
        timed = [c for c in request.references if c.type != "image"]
        if request.task != "ref2va" or len(timed) != 1:
            raise RequestError(
                "target.duration_seconds",
                None,
                f"required: {SECONDS} (only ref2va with exactly one reference of audio or video may leave it out)",
            )
    elif not LIMITS.min_seconds <= target.duration_seconds <= LIMITS.max_seconds:
        raise RequestError("target.duration_seconds", target.duration_seconds, SECONDS)


def _check_sigmas(request: GenerationRequest) -> None:
    if request.sigmas is None:
        return
    for name in ("flow_shift", "audio_flow_shift"):
        if (shift := getattr(request, name)) is not None:
            raise RequestError(
                name, shift, "leave it out beside sigmas: they are the schedule, and nothing shifts them"
            )
    for name in ("video", "audio"):
        sigmas: tuple[float, ...] = getattr(request.sigmas, name)
        if sigmas[0] != 1 or sigmas[-1] != 0:
            raise RequestError(f"sigmas.{name}", f"from {sigmas[0]:g} to {sigmas[-1]:g}", SIGMAS)
        for before, after in pairwise(sigmas):
            if round(before - after, 9) < LIMITS.min_sigma_gap:
                raise RequestError(f"sigmas.{name}", f"{before:.9g}, then {after:.9g}", SIGMAS)
    counts = len(request.sigmas.video) - 1, len(request.sigmas.audio) - 1
    if counts[0] != counts[1]:
        raise RequestError("sigmas.audio", f"{counts[1] + 1} numbers", f"as many as video has, {counts[0] + 1}")
    if request.num_inference_steps != counts[0]:
        allowed = f"sigmas make {counts[0]} evaluations: leave it out, or say the same"
        raise RequestError("num_inference_steps", request.num_inference_steps, allowed)


def _check_adapters(request: GenerationRequest) -> None:
    names = [choice.name for choice in request.adapters]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError(
                f"adapters[{index}].name", name, "each adapter once, at the strength that it should have"
            )


_GUIDANCE = "the model is guidance-distilled: leave this field out"
# Fields that other video models have; the reason is more useful than "unknown".
_WHY_NOT = {
    **dict.fromkeys(("guidance_scale", "guidance_scale_2", "true_cfg_scale", "audio_guidance_scale"), _GUIDANCE),
    "negative_prompt": "the model takes no negative prompt: leave this field out",
    "fps": "the frame rate is always 24: leave this field out",
    "num_frames": "the length follows from target.duration_seconds: leave this field out",
    "n": "one request makes one video: send one request per video, each with its own seed",
}


def _request_error(error: ValidationError) -> RequestError:
    """The first complaint as a RequestError; unknown fields go before wrong values."""
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] != "extra_forbidden")
    first = details[0]
    value = None if first["type"] == "missing" else first["input"]
    return RequestError(dotted(first["loc"]) or "request", value, _what_is_allowed(first))


def dotted(loc: tuple[int | str, ...]) -> str:
    """('conditions', 1, 'uri') -> 'conditions[1].uri'."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _what_is_allowed(detail: ErrorDetails) -> str:
    names = [part for part in detail["loc"] if isinstance(part, str)]
    allowed = dict(_descriptions())
    key = ".".join(names)
    if detail["type"] == "extra_forbidden":
        parent = names[:-1]
        known = ", ".join(sorted(k.rsplit(".", 1)[-1] for k in allowed if k.split(".")[:-1] == parent))
        return _WHY_NOT.get(names[-1], f"unknown field; known here are {known}")
    if detail["type"] == "missing":
        return f"required: {allowed[key]}"
    return allowed.get(key, detail["msg"])


def _descriptions() -> Iterator[tuple[str, str]]:
    """The dotted name of every field, and what it may be."""
    for prefix, model in (
        ("", GenerationRequest),
        ("conditions.", Condition),
        ("target.", Target),
        ("sigmas.", Sigmas),
        ("adapters.", AdapterChoice),
    ):
        for name, field in model.model_fields.items():
            yield prefix + name, str(field.description)
