"""What a request is made of: its conditions, target, explicit sigmas and adapters, and the numbers that they allow.

Every field's description says what it may be, in the words of the sentence that refuses anything else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from h3serve.core.limits import DEFAULT_SHORT_EDGE, LIMITS

ConditionType = Literal["image", "video", "video_audio", "audio"]
Role = Literal["keyframe", "reference"]
ResizeMode = Literal["match", "max", "diffusers"]
SECONDS = f"a number from {LIMITS.min_seconds:g} to {LIMITS.max_seconds:g}"
SHORT_EDGE = (
    f"a whole number from {LIMITS.min_short_edge} to {LIMITS.max_short_edge}; {DEFAULT_SHORT_EDGE} is recommended"
)

ADAPTER_NAME = "the name of an adapter in the server's folder; without a server, a path"
STRENGTH = f"a number from -{LIMITS.max_strength:g} to {LIMITS.max_strength:g}"

Level = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1.0, description="a number from 0 to 1")]
Shift = Annotated[
    float | None,
    Field(
        strict=True,
        allow_inf_nan=False,
        ge=LIMITS.min_shift,
        le=LIMITS.max_shift,
        description=f"a number from {LIMITS.min_shift:g} to {LIMITS.max_shift:g}",
    ),
]
SIGMAS = f"2 to {LIMITS.max_steps + 1} numbers that fall from 1 to 0, each by {LIMITS.min_sigma_gap:g} or more"
SigmaList = Annotated[
    tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...],
    Field(min_length=2, max_length=LIMITS.max_steps + 1, description=SIGMAS),
]


def any_of(kind: Any) -> str:
    """The values of a `Literal` in words: "one of a, b, c"."""
    return f"one of {', '.join(get_args(kind))}"


class Value(BaseModel):
    """A frozen value; a field that it does not have is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(Value):
    """One image, video or audio file: a keyframe of the target, or a reference for it."""

    type: Annotated[ConditionType, Field(description=any_of(ConditionType))]
    uri: Annotated[str, Field(strict=True, min_length=1, description="a non-empty text")]
    role: Annotated[Role, Field(description=any_of(Role))]
    frame_index: Annotated[
        int | None,
        Field(strict=True, description="a whole number: 0 for the first frame, -1 for the last"),
    ] = None  # keyframes only
    start_time_seconds: Annotated[
        float | None, Field(strict=True, allow_inf_nan=False, ge=0.0, description="a number of seconds >= 0")
    ] = None

    @property
    def is_visual(self) -> bool:
        """True when it brings rows of the video kind."""
        return self.type != "audio"


class Target(Value):
    """What is made: short edge in pixels, aspect ratio `auto` or W:H, duration in seconds."""

    short_edge: Annotated[
        int, Field(strict=True, ge=LIMITS.min_short_edge, le=LIMITS.max_short_edge, description=SHORT_EDGE)
    ] = DEFAULT_SHORT_EDGE
    aspect_ratio: Annotated[str, Field(strict=True, description="auto or W:H, such as 16:9")] = "auto"
    duration_seconds: Annotated[float | None, Field(strict=True, allow_inf_nan=False, description=SECONDS)] = None


class Sigmas(Value):
    """An explicit schedule: the noise levels before each evaluation, and a 0 at the end."""

    video: SigmaList
    audio: SigmaList


class AdapterChoice(Value):
    """One adapter (LoRA and its kin) on the transformer while this video is made."""

    name: Annotated[str, Field(strict=True, min_length=1, description=ADAPTER_NAME)]
    strength: Annotated[
        float,
        Field(strict=True, allow_inf_nan=False, ge=-LIMITS.max_strength, le=LIMITS.max_strength, description=STRENGTH),
    ] = 1.0
    sha256: Annotated[
        str | None, Field(strict=True, pattern="^[0-9a-f]{64}$", description="64 hex digits: the file's content")
    ] = None  # None: whatever the file holds
