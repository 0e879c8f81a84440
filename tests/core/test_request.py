"""Every wrong field is refused by name, with its value and what is allowed."""

import math
from typing import Any

import pytest

from h3serve.core.errors import RequestError
from h3serve.core.request import GenerationRequest, parse_request
from h3serve.core.request_values import Condition, Target

FIRST = {"type": "image", "uri": "a.png", "role": "keyframe", "frame_index": 0}
LAST = {**FIRST, "frame_index": -1}
PICTURE = {"type": "image", "uri": "p.png", "role": "reference"}
CLIP = {"type": "video", "uri": "v.mp4", "role": "reference"}
SOUND = {"type": "audio", "uri": "s.wav", "role": "reference"}


def body(**changes: Any) -> dict[str, Any]:
    return {"task": "t2va", "prompt": "a fox", "target": {"duration_seconds": 5}, **changes}


def target(**changes: Any) -> dict[str, Any]:
    return {"target": {"duration_seconds": 5, **changes}}


def fl2va(*conditions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"task": "fl2va", "conditions": list(conditions), **changes}


def ref2va(*conditions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"task": "ref2va", "conditions": list(conditions), **changes}


def sigmas(**changes: Any) -> dict[str, Any]:
    return {"sigmas": {"video": [1, 0.9, 0], "audio": [1, 0.5, 0], **changes}}


LEVEL = "imgvid_cond_noise_aug_for_inference"
WRONG = [
    ("task", {"task": "t2v"}),
    ("task", {"task": None}),
    ("colour", {"colour": 1}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": " \n"}),
    ("prompt", {"prompt": 3}),
    ("prompt", {"prompt": "a fox <|vision_start|>"}),
    ("prompt", {"prompt": "a fox " * 5000}),
    ("prompt", {"prompt": "x" * 65_537}),
    *(
        ("target.duration_seconds", target(duration_seconds=v))
        for v in (3.99, 15.01, "4", math.nan, math.inf, None, -1)
    ),
    *(("target.aspect_ratio", target(aspect_ratio=v)) for v in ("5:1", "1:5", "16/9", "0:1", "adaptive", "", 1.5)),
    *(("target.short_edge", target(short_edge=v)) for v in (63, 0, -1, 4097, 768.0, "768")),
    ("target.fps", target(fps=24)),
    *((name, {name: 1}) for name in ("guidance_scale", "negative_prompt", "fps", "num_frames", "n")),
    *(("num_inference_steps", {"num_inference_steps": v}) for v in (0, -1, 1001, 1.5, "50", True)),
    *(("seed", {"seed": v}) for v in (-1, 2**63, 2**64, "1", 1.0, True)),
    *(
        (name, {name: v})
        for name in ("flow_shift", "audio_flow_shift")
        for v in (0, -1, math.nan, math.inf, "3", 0.009, 1000.1, 1e6, 1e39)
    ),
    *((LEVEL, {LEVEL: v}) for v in (-0.1, 1.1, math.nan)),
    ("quality", {"quality": "high"}),
    ("solver", {"solver": "heun"}),
    ("solver", {"solver": None}),
    ("sigmas", {"sigmas": [1, 0.5, 0]}),  # of one list, as for other models
    ("sigmas.audio", {"sigmas": {"video": [1, 0]}}),
    ("sigmas.text", {"sigmas": {"video": [1, 0], "audio": [1, 0], "text": [1, 0]}}),
    *(
        (f"sigmas.{name}", sigmas(**{name: values}))
        for name in ("video", "audio")
        for values in (
            *([], [1], [1, 0.5], [0.999, 0.5, 0], [1.1, 0.5, 0], [1, 0.5, -0.1], [1, 0.5, 1e-9], 0.5, "1, 0.5, 0"),
            *([1, 0.5, 0.5, 0], [1, 0.5, 0.6, 0], [1, 0.5, 0.4999995, 0], [1, 5e-7, 0]),
            [1 - i / 1001 for i in range(1002)],
        )
    ),
    *(("sigmas.video[1]", sigmas(video=[1, wrong, 0])) for wrong in ("0.5", True, None, math.nan, math.inf, -math.inf)),
    ("sigmas.audio", sigmas(audio=[1, 0.5, 0.2, 0])),
    ("num_inference_steps", {**sigmas(), "num_inference_steps": 3}),
    ("flow_shift", {**sigmas(), "flow_shift": 12.0}),
    ("audio_flow_shift", {**sigmas(), "audio_flow_shift": 3.0}),
    ("reference_resize_mode", {"reference_resize_mode": "crop"}),
    ("conditions", {"conditions": [FIRST]}),  # t2va takes none
    ("conditions", fl2va()),
    ("conditions", fl2va(FIRST, LAST, LAST)),
    ("conditions", fl2va(LAST, FIRST)),
    ("conditions", fl2va(FIRST, FIRST)),
    ("conditions", fl2va(FIRST, PICTURE)),
    ("conditions[0].frame_index", fl2va({**FIRST, "frame_index": 60})),
    ("conditions[0].frame_index", fl2va({**FIRST, "frame_index": None})),
    ("conditions[0].type", fl2va({**FIRST, "type": "video"})),
    *(("conditions[1].uri", fl2va(FIRST, {**LAST, "uri": blank})) for blank in ("", " ", "\n")),
    ("conditions[0].uri", fl2va({**FIRST, "uri": None})),
    ("conditions[0].strength", fl2va({**FIRST, "strength": 1})),
    ("conditions", ref2va()),
    ("conditions", ref2va(FIRST)),
    ("conditions", ref2va(SOUND)),
    ("conditions", ref2va(*[PICTURE] * 10)),
    ("conditions", ref2va(*[CLIP] * 4)),
    ("conditions", ref2va(PICTURE, *[SOUND] * 4)),
    ("conditions", ref2va(*[PICTURE] * 9, *[CLIP] * 2, *[SOUND] * 2)),
    ("conditions[0].frame_index", ref2va({**PICTURE, "frame_index": 0})),
    ("conditions[0].start_time_seconds", ref2va({**PICTURE, "start_time_seconds": 1.0})),
    ("conditions[0].start_time_seconds", ref2va({**CLIP, "start_time_seconds": -1.0})),
    ("target.duration_seconds", ref2va(PICTURE, target={})),
    ("target.duration_seconds", ref2va(CLIP, SOUND, target={})),
]


@pytest.mark.parametrize(("field", "changes"), WRONG, ids=lambda v: str(v)[:60])
def test_wrong_field_is_named(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(body(**changes))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert len(caught.value.allowed) > 3


RIGHT = [
    {},
    target(aspect_ratio="9:16", short_edge=64),
    target(duration_seconds=4),
    target(duration_seconds=15.0),
    {"seed": 2**63 - 1, "num_inference_steps": 1000},
    {"flow_shift": 1000.0, "audio_flow_shift": 0.01},
    {"solver": "multistep"},
    sigmas(),
    {**sigmas(), "num_inference_steps": 2, "flow_shift": None},
    sigmas(video=[1, 1 - 1e-6, 0], audio=[1, 1e-6, 0]),
    {"sigmas": None},
    {"prompt": "word " * 8192},
    *(fl2va(*c) for c in ([FIRST], [LAST], [FIRST, LAST])),
    fl2va(FIRST, **target(aspect_ratio="3:2")),
    target(aspect_ratio="3:2"),
    target(aspect_ratio="1:4"),
    ref2va(CLIP, target={}),  # duration from the one sound-bearing reference
    ref2va(PICTURE, SOUND, {**CLIP, "start_time_seconds": 0.5}),
    ref2va(FIRST, LAST, PICTURE),  # keyframes beside references
]


@pytest.mark.parametrize("changes", RIGHT, ids=lambda v: str(v)[:60])
def test_right_request_round_trips(changes: dict[str, Any]) -> None:
    request = parse_request(body(**changes))
    assert parse_request(request.model_dump()) == request
    assert GenerationRequest.model_validate_json(request.model_dump_json()) == request


def test_sigmas_count_the_evaluations() -> None:
    assert parse_request(body(**sigmas())).num_inference_steps == 2
    many = [1 - i / 1000 for i in range(1001)]
    assert parse_request(body(**sigmas(video=many, audio=many))).num_inference_steps == 1000
    assert GenerationRequest(**body(sigmas=parse_request(body(**sigmas())).sigmas)).num_inference_steps == 2


def test_unknown_field_is_reported_before_a_wrong_value() -> None:
    with pytest.raises(RequestError, match="^negative_prompt:"):
        parse_request(body(seed=-1, negative_prompt=""))


def test_request_is_frozen_and_built_from_values_too() -> None:
    first = Condition(type="image", uri="a.png", role="keyframe", frame_index=0)
    request = GenerationRequest(task="fl2va", prompt="x", conditions=(first,), target=Target(duration_seconds=4.0))
    assert request.keyframes == (first,) and not request.references
    with pytest.raises(Exception, match="frozen"):
        request.seed = 1


def test_prompt_is_kept_verbatim() -> None:
    assert parse_request(body(prompt="  two \n lines ")).prompt == "  two \n lines "
