"""What clients of OpenAI, SGLang and vLLM-Omni send, as H3 fields; canvases by the table of spec 8.4."""

from typing import Any

import pytest

from h3serve.core.errors import RequestError
from h3serve.core.geometry import SizeRules
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.service.http.openai_fields import to_h3
from h3serve.service.http.peer_fields import without_peer_fields

SMALL = SizeRules(max_canvas_area=96 * 128)
URI = "https://example.com/a.png"
IMAGE = {"type": "image", "uri": URI, "role": "keyframe", "frame_index": 0}


def h3(**fields: Any) -> dict[str, Any]:
    return to_h3(without_peer_fields({"prompt": "a", **fields}))


def made(**fields: Any) -> tuple[str, int]:
    """The canvas and the frames of a body."""
    plan = Plan.resolve(parse_request(h3(**fields)))
    return f"{plan.canvas[0]}x{plan.canvas[1]}", plan.frames


@pytest.mark.parametrize(
    ("size", "canvas"),
    [
        *(("1280x720", "1344x768"), ("1920x1080", "1344x768"), ("720x1280", "768x1344"), ("1792x1024", "1344x768")),
        *(("3000x2000", "1152x768"), ("2000x1000", "1440x704"), ("4000x1000", "2016x512"), ("1000x4000", "512x2016")),
        *(("960x540", "960x544"), ("854x480", "864x480"), ("896x512", "896x512"), ("960x544", "960x544")),
        *(("1024x1024", "1024x1024"), ("1536x672", "1536x672"), ("1000x1000", "768x768"), ("1000x600", "992x608")),
    ],
)
def test_a_size_becomes_the_nearest_canvas_of_its_ratio(size: str, canvas: str) -> None:
    assert made(size=size)[0] == canvas


@pytest.mark.parametrize(
    "size", ["1280x00", "0x720", "00x00", "x", "1280*720", "1280x720 ", "4100x1000", "9x9", "64x32", 3, "٧٢٠x٧٢٠"]
)
def test_a_size_that_is_none_is_named(size: Any) -> None:
    with pytest.raises(RequestError) as caught:
        h3(size=size)
    assert caught.value.field == "size"


@pytest.mark.parametrize(("frames", "seconds"), [(107, 107 / 24), (124, 124 / 24), (243, 10.125), (362, 15.0)])
def test_frames_that_exist_are_made(frames: int, seconds: float) -> None:
    assert h3(num_frames=frames)["target"]["duration_seconds"] == seconds
    assert made(num_frames=frames, fps=24)[1] == frames


def test_pixels_that_exist_are_made() -> None:
    assert made(width=1152, height=768)[0] == "1152x768" and made(width=1344, height=768, num_frames=124)[1] == 124
    target = to_h3({"prompt": "a", "width": 128, "height": 96}, SMALL)["target"]
    assert target == {"duration_seconds": 4.0, "short_edge": 96, "aspect_ratio": "4:3"}


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"width": 1280, "height": 720}, "width", "the nearest is 1280x704"),
        ({"width": 2048, "height": 1024}, "width", "the nearest is"),
        ({"width": 1344}, "height", "together"),
        ({"width": "1344", "height": 768}, "width", "whole numbers"),
        ({"width": 1344, "height": True}, "height", "whole numbers"),
        ({"width": 1344, "height": 768, "size": "1344x768"}, "size", "leave one"),
        ({"width": 4096, "height": 64}, "width", "1:4"),
        ({"num_frames": 120}, "num_frames", "17n+5"),
        ({"num_frames": 90}, "num_frames", "from 107 to 362"),
        ({"num_frames": 379}, "num_frames", "from 107 to 362"),
        ({"num_frames": 124.0}, "num_frames", "17n+5"),
        ({"num_frames": 124, "seconds": 5}, "num_frames", "leave one"),
        ({"seconds": "3"}, "seconds", "from 4 to 15"),
        ({"seconds": 1e400}, "seconds", "from 4 to 15"),
        ({"seconds": True}, "seconds", "from 4 to 15"),
        ({"target": {}, "width": 1344, "height": 768}, "width", "either"),
        ({"target": {}, "num_frames": 124}, "num_frames", "either"),
    ],
)
def test_what_names_no_video_of_the_model_is_refused_by_name(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        h3(**fields)
    assert caught.value.field == field and words in caught.value.allowed


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "num_outputs_per_prompt": (1,),
    "fps": (24, 24.0),
    "guidance_scale": (1, 1.0),
    "guidance_scale_2": (1.0,),
    "true_cfg_scale": (1.0,),
    "negative_prompt": ("", " "),
    "user": ("user-17", "17"),
    "enable_teacache": (False,),
    "enable_frame_interpolation": (False,),
    "enhance_prompt": (False,),
    "generate_sound": (True,),
    "output_mode": ("decoded_files",),
}
CHANGES = {
    "n": (0, 2, True, "1"),
    "num_outputs_per_prompt": (2,),
    "fps": (25, 0, "24"),
    "guidance_scale": (5, 0, 1.01, True),
    "negative_prompt": ("bad", 0, False),
    "user": (17, ["a"]),
    "enable_teacache": (True, 0),
    "enable_frame_interpolation": (True,),
    "enhance_prompt": (True,),
    "generate_sound": (False, 1),
    "output_mode": ("tensors",),
    "lora": ({"name": "a"}, ""),
    "response_format": ("b64_json",),
    "seed": (None, -1),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in NEUTRAL.items() for v in (*vs, None)])
def test_what_changes_nothing_is_taken(name: str, value: Any) -> None:
    assert h3(**{name: value}) == h3()


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in CHANGES.items() for v in vs])
def test_what_would_change_something_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(h3(**{name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize(
    "fields",
    [
        {"input_reference": URI},
        {"input_reference": {"image_url": URI}},
        {"input_reference": {"image_url": {"url": URI}}},
        {"input_reference": {"type": "image_url", "image_url": {"url": URI}}},
        {"input_reference": {"type": "image_url", "image_url": URI}},
        {"image_reference": {"image_url": URI}},
        {"reference_url": URI},
        {"input_reference": None, "image_reference": {"image_url": URI}},
        {"extra_params": {"input_reference": URI}},
        {"extra_body": {"conditions": [IMAGE], "task": "fl2va", "target": {"duration_seconds": 4.0}}},
    ],
)
def test_the_first_frame_in_every_form(fields: dict[str, Any]) -> None:
    assert h3(**fields) == {
        "prompt": "a",
        "task": "fl2va",
        "conditions": [IMAGE],
        "target": {"duration_seconds": 4.0},
    }


@pytest.mark.parametrize(
    "value",
    [
        *(3, "", {}, [], {"file_id": "f"}, {"image_url": 3}, {"image_url": {"url": ""}}, {"image_url": {}}),
        *({"type": "video_url", "image_url": URI}, {"image_url": {"url": URI, "detail": "x"}}, {"type": "image_url"}),
        {"image_url": URI, "file_id": "f"},
    ],
)
def test_a_first_frame_in_no_known_form_is_named(value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        h3(input_reference=value)
    assert caught.value.field == "input_reference" and "image_url" in caught.value.allowed


def test_a_group_is_opened_and_nothing_is_given_twice() -> None:
    assert h3(video_params={"width": 1152, "height": 768, "fps": 24})["target"]["aspect_ratio"] == "3:2"
    assert h3(extra_params={"seed": 5})["seed"] == 5 and h3(extra_params={}, extra_body=None) == h3()
    for fields in (
        {"extra_params": {"seed": 5}, "seed": 5},
        {"extra_params": {"seed": 5}, "extra_body": {"seed": 5}},
        {"extra_params": [1]},
        {"input_reference": URI, "reference_url": URI},
    ):
        with pytest.raises(RequestError):
            h3(**fields)
