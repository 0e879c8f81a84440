"""The record that an MP4 carries: everything that makes the video, and nothing of where it was made."""

import json
from typing import Any

import pytest

from h3serve.core.request import GenerationRequest, parse_request
from h3serve.core.request_values import AdapterChoice, Condition, Target
from h3serve.core.video_record import AS_THEY_ARE, request_of_record, video_record

SECRET = "alice-7f3"
FIELDS: dict[str, Any] = {
    "task": "ref2va",
    "prompt": 'a "lion" in <Video 1>, 狮子',
    "conditions": [
        {"type": "image", "role": "keyframe", "frame_index": 0, "uri": f"/home/{SECRET}/first.png"},
        {"type": "video", "role": "reference", "uri": f"https://u:{SECRET}@h.example/a.mp4?sig={SECRET}"},
        {"type": "video", "role": "reference", "uri": f"C:\\{SECRET}\\b.mp4", "start_time_seconds": 1.5},
        {"type": "audio", "role": "reference", "uri": f"data:audio/wav;base64,{SECRET}"},
    ],
    "target": {"short_edge": 128, "aspect_ratio": "4:3", "duration_seconds": 5.5},
    "seed": 2**63 - 1,
    "num_inference_steps": 7,
    "flow_shift": 11.5,
    "solver": "multistep",
    "quality": "fast",
    "reference_resize_mode": "match",
}
ADAPTERS = [{"name": f"/srv/{SECRET}/styles/ink.safetensors", "strength": 0.5, "sha256": "ab" * 32, "base": SECRET}]
CHECKPOINT = {"model": None, "partition": "ref2va", "sample": "cd" * 16, "folder": f"/srv/{SECRET}"}


def record(fields: dict[str, Any], adapters: Any = ()) -> str:
    request = parse_request(fields)
    return video_record(request, version="9.8.7", quality="fast", checkpoint=CHECKPOINT, adapters=adapters)


def test_it_makes_the_same_request_again_without_its_media() -> None:
    again = request_of_record(record(FIELDS, ADAPTERS))
    assert [c.get("start_time_seconds") for c in again["conditions"]] == [None, None, 1.5, None]
    for condition, given in zip(again["conditions"], FIELDS["conditions"], strict=True):
        condition["uri"] = given["uri"]
    expected = {**FIELDS, "adapters": [{"name": "ink.safetensors", "strength": 0.5, "sha256": "ab" * 32}]}
    assert parse_request(again) == parse_request(expected)


def test_explicit_sigmas_are_kept() -> None:
    fields = {"task": "t2va", "prompt": "a", "target": {"duration_seconds": 4}}
    fields["sigmas"] = {"video": [1, 0.5, 0], "audio": [1, 0.25, 0]}
    assert parse_request(request_of_record(record(fields))) == parse_request(fields)


def test_nothing_of_where_it_was_made_gets_in() -> None:
    text = record(FIELDS, ADAPTERS)
    assert SECRET not in text and "/" not in text.replace("4:3", "") and "uri" not in text
    known = json.loads(text)
    assert known["h3serve"] == "9.8.7" and known["quality"] == "fast"
    assert known["checkpoint"] == {"partition": "ref2va", "sample": "cd" * 16}


def test_every_field_of_a_request_is_in_it_or_left_out_on_purpose() -> None:
    """A new field has to be decided on: without it a video could not be made again."""
    assert set(GenerationRequest.model_fields) == {*AS_THEY_ARE, "target", "conditions", "adapters"}
    assert set(Target.model_fields) == set(request_of_record(record(FIELDS))["target"])
    kept = {name for c in request_of_record(record(FIELDS))["conditions"] for name in c}
    assert set(Condition.model_fields) == {*kept, "uri"}
    assert set(AdapterChoice.model_fields) == {"name", "strength", "sha256"}


def test_equal_requests_have_equal_records() -> None:
    assert record(FIELDS) == record(dict(reversed(FIELDS.items())))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "made with love",
        "[]",
        '{"h3serve": "1"}',
        '{"request": {}}',
        '{"h3serve": "1", "request": []}',
        '{"h3serve": "1", "request": {"conditions": 3}}',
        '{"h3serve": "1", "request": {"conditions": ["a"]}}',
        '{"h3serve": "1", "request": {"target": [1]}}',
        '{"h3serve": "1", "request": {"adapters": {"name": "a"}}}',
        "[" * 200_000,
        " " * (2**20 + 1),
    ],
)
def test_what_is_no_record(text: str) -> None:
    with pytest.raises(ValueError):
        request_of_record(text)


def test_a_record_that_somebody_made_up_names_no_file() -> None:
    made_up = {
        "task": "fl2va",
        "prompt": "a",
        "conditions": [{"type": "image", "role": "keyframe", "frame_index": 0, "uri": "/etc/passwd"}],
        "adapters": [{"name": "../../etc/shadow", "strength": 1}],
        "webhook_url": "http://evil.example",
    }
    read = request_of_record(json.dumps({"h3serve": "1", "request": made_up}))
    assert "/etc" not in json.dumps(read) and "webhook_url" not in read
