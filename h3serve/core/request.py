"""The request: frozen values with the field names of the published H3 requests (spec/tasks_and_validation.md 8.2).

An unknown field is an error; nothing is accepted and then ignored. `parse_request` is the one door:
it turns the first complaint of the validation library into a RequestError that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from h3serve.core.limits import (
    DEFAULT_AUDIO_CONDITION_LEVEL,
    DEFAULT_SEED,
    DEFAULT_STEPS,
    DEFAULT_VISUAL_CONDITION_LEVEL,
    LIMITS,
    Quality,
    Task,
)
from h3serve.core.request_errors import request_error
from h3serve.core.request_rules import check_request

StrictInt = Annotated[int, Field(strict=True)]
StrictFloat = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Level = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1.0)]
Shift = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=LIMITS.min_shift, le=LIMITS.max_shift)]
ConditionType = Literal["image", "video", "video_audio", "audio"]
ResizeMode = Literal["match", "max", "diffusers"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(_Value):
    """One picture, clip or sound: a keyframe of the target, or a reference for it."""

    type: ConditionType
    uri: Annotated[str, Field(strict=True, min_length=1)]
    role: Literal["keyframe", "reference"]
    frame_index: StrictInt | None = None  # keyframes only: 0 first, -1 last
    start_time_seconds: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0)] | None = None

    @property
    def is_visual(self) -> bool:
        """True when it brings rows of the video kind."""
        return self.type != "audio"


class Target(_Value):
    """What is made: short edge in pixels, aspect ratio `auto` or W:H, duration in seconds."""

    short_edge: Annotated[int, Field(strict=True, ge=LIMITS.min_short_edge, le=LIMITS.max_short_edge)] = 768
    aspect_ratio: Annotated[str, Field(strict=True)] = "auto"
    duration_seconds: StrictFloat | None = None


class GenerationRequest(_Value):
    """One video with its soundtrack. `num_inference_steps` counts model evaluations."""

    task: Task
    prompt: Annotated[str, Field(strict=True, max_length=LIMITS.max_prompt_characters)]
    conditions: tuple[Condition, ...] = ()
    target: Target = Target()
    seed: Annotated[int, Field(strict=True, ge=0, le=LIMITS.max_seed)] = DEFAULT_SEED
    num_inference_steps: Annotated[int, Field(strict=True, ge=1, le=LIMITS.max_steps)] = DEFAULT_STEPS
    flow_shift: Shift | None = None  # None: the checkpoint's own
    audio_flow_shift: Shift | None = None
    imgvid_cond_noise_aug_for_inference: Level = DEFAULT_VISUAL_CONDITION_LEVEL
    audio_cond_noise_aug_for_inference: Level = DEFAULT_AUDIO_CONDITION_LEVEL
    reference_resize_mode: ResizeMode = "diffusers"
    quality: Quality | None = None  # None: the tier that the engine was started with

    @model_validator(mode="after")
    def _check(self) -> GenerationRequest:
        check_request(self)
        return self

    @property
    def keyframes(self) -> tuple[Condition, ...]:
        """Conditions with role keyframe, in request order."""
        return tuple(c for c in self.conditions if c.role == "keyframe")

    @property
    def references(self) -> tuple[Condition, ...]:
        """Conditions with role reference, in request order (the order is semantic)."""
        return tuple(c for c in self.conditions if c.role == "reference")


def parse_request(fields: Mapping[str, Any] | GenerationRequest) -> GenerationRequest:
    """A GenerationRequest from a JSON-like mapping, or a RequestError naming the first wrong field."""
    if isinstance(fields, GenerationRequest):
        return fields
    try:
        return GenerationRequest.model_validate(fields)
    except ValidationError as error:
        raise request_error(error) from None
