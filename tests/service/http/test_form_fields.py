"""Form parts as clients write them; the openai client's own flattening is the independent source."""

import json
from typing import Any

import httpx
import pytest

from h3serve.core.errors import RequestError
from h3serve.service.http.body import Body, Upload
from h3serve.service.http.form_fields import fields_of

CONDITIONS = [
    {"type": "image", "uri": "upload:a.png", "role": "keyframe", "frame_index": 0},
    {"type": "image", "uri": "7", "role": "keyframe", "frame_index": -1},
]
TARGET = {"short_edge": 64, "aspect_ratio": "4:3", "duration_seconds": 4.5}


def form(**parts: Any) -> dict[str, Any]:
    return fields_of(Body(parts, is_form=True))


def test_lists_of_objects_in_the_three_spellings() -> None:
    columns = {f"conditions[][{name}]": [str(c[name]) for c in CONDITIONS] for name in CONDITIONS[0]}
    numbered = {f"conditions[{i}][{name}]": str(v) for i, c in enumerate(CONDITIONS) for name, v in c.items()}
    whole = {"conditions": json.dumps(CONDITIONS)}
    for parts in (columns, numbered, whole):
        assert form(**parts) == {"conditions": CONDITIONS}
    assert form(**{"conditions[][type]": ["image"]}) == {"conditions": [{"type": "image"}]}


def test_as_the_openai_client_flattens_it() -> None:
    openai = pytest.importorskip("openai")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return httpx.Response(500)

    client = openai.OpenAI(api_key="x", max_retries=0, http_client=httpx.Client(transport=httpx.MockTransport(answer)))
    extra = {"task": "fl2va", "conditions": CONDITIONS, "target": TARGET}
    with pytest.raises(openai.InternalServerError), pytest.warns(DeprecationWarning):
        client.videos.create(prompt="7", input_reference=("a.png", b"png"), extra_body=extra)
    parts: dict[str, Any] = {}
    for part in seen[0].content.split(b"\r\n--"):
        head, _, text = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        if name and b"filename" not in head:
            parts[name] = [*parts.get(name, []), text.decode()] if "[]" in name else text.decode()
    assert form(**parts) == {"prompt": "7", **extra}


def test_text_stays_text_and_the_rest_is_json() -> None:
    parts = {"prompt": "12", "user": "7", "seed": "12", "guidance_scale": "1.0", "negative_prompt": "", "x": "01"}
    expected = {"prompt": "12", "user": "7", "seed": 12, "guidance_scale": 1.0, "negative_prompt": "", "x": "01"}
    assert form(**parts) == expected
    assert form(**{"input_reference[image_url][url]": "8"}) == {"input_reference": {"image_url": {"url": "8"}}}


@pytest.mark.parametrize(
    "parts",
    [
        {"conditions[][type]": ["image", "audio"], "conditions[][frame_index]": ["0"]},
        {"conditions": "[]", "conditions[][type]": ["image"]},
        {"target[short_edge]": "64", "target": "{}"},
        {"target": "{}", "target[short_edge]": "64"},
        {"a[b][c][d][e]": "1"},
        {"a[][b][]": ["1"]},
        {"[][type]": ["image"]},
        {"a[]]": ["1"]},
        {"request": '{"seed": 1}', "seed": "1"},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        form(**parts)


def test_an_uploaded_reference_is_the_field_unless_conditions_name_it(tmp_path: Any) -> None:
    files = [Upload(tmp_path, "input_reference", "a.png")]
    assert fields_of(Body({}, files, is_form=True)) == {"input_reference": "upload:input_reference"}
    named = {"conditions": json.dumps(CONDITIONS)}
    assert fields_of(Body(named, files, is_form=True)) == {"conditions": CONDITIONS}
    with pytest.raises(RequestError, match="both as text and as a file"):
        fields_of(Body({"input_reference": "https://example.com/b.png"}, files, is_form=True))
