"""Prompts rewritten through an endpoint: what is asked, and what becomes of bad answers."""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from h3serve.core.errors import EndpointError, RequestError
from h3serve.core.request import parse_request
from h3serve.media.sources.http_client import Bounds
from h3serve.prompts.endpoint import MOST_BYTES, Endpoint, EnhanceSettings, open_endpoint
from h3serve.prompts.enhance import EnhancedPrompt, enhance, shown_images
from tests.prompts.prompt_texts import correct, needs, request_of
from tests.prompts.stub_endpoint import Stub, stub_endpoint

WANTED, GOOD = correct()["harbour"]
QUICK = Bounds(total_seconds=0.5, connect_seconds=0.5, private_addresses=True)


def rewrite(stub: Stub, bounds: Bounds | None = None, wanted: Any = WANTED, images: Any = ()) -> EnhancedPrompt:
    endpoint = Endpoint(stub.url, "writer", "sk-1", *([bounds] if bounds else []))
    return asyncio.run(enhance("a harbour at noon", wanted, endpoint, list(images)))


def test_a_good_answer_is_taken_at_once() -> None:
    with stub_endpoint(GOOD) as stub:
        made = rewrite(stub)
    assert (made.prompt, made.original, made.complaints, made.tries) == (GOOD, "a harbour at noon", (), 1)
    [asked] = stub.asked
    assert asked["model"] == "writer" and asked["temperature"] == 0 and stub.keys == ["Bearer sk-1"]
    said = asked["messages"][1]["content"][0]["text"]
    assert "a harbour at noon" in said and "10.12 seconds" in said and "overall_soundscape:" in said


@pytest.mark.parametrize(
    ("answers", "bounds", "why"),
    [
        ([(500, b"out of memory")], None, "it answered 500"),
        ([(200, b"<html>busy</html>")], None, "no chat completion"),
        ([(200, b'{"choices": [{"message": {"content": null}}]}')], None, "no text"),
        ([(200, b" " * (MOST_BYTES + 1))], None, "more than 1048576 bytes"),
        ([None], QUICK, "did not end within 0.5 s"),
        (["I am sorry, I can not help with that."], None, "did not answer in the official form"),
        ([GOOD.replace("[Shot 1]", "[Shot 1] <|image_pad|>")], None, "did not answer in the official form"),
        ([(302, b"")], None, "it answered 302"),
    ],
    ids=["error", "no json", "no text", "endless", "silent", "prose", "forbidden tokens", "redirect"],
)
def test_what_cannot_be_used_is_one_sentence(answers: list[Any], bounds: Bounds | None, why: str) -> None:
    with stub_endpoint(*answers) as stub, pytest.raises(EndpointError, match=why) as caught:
        rewrite(stub, bounds)
    assert "sk-1" not in str(caught.value) and caught.value.http_status == 502


@pytest.mark.parametrize(
    "answer",
    [
        f"```text\n{GOOD}\n```",
        f"Here is the prompt:\n\n{GOOD}",
        f"<think>A harbour.\noverall_soundscape: maybe gulls?</think>\n{GOOD}",
    ],
    ids=["fenced", "announced", "thought aloud"],
)
def test_what_surrounds_the_prompt_goes(answer: str) -> None:
    with stub_endpoint(answer) as stub:
        assert (made := rewrite(stub)).prompt == GOOD and made.tries == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD[: GOOD.index("non_diegetic_music")], "non_diegetic_music: is missing"),
        (GOOD.replace("At 00:03.500,", "At 00:09.000,"), "is not after"),
        (GOOD.replace("At 00:07.250,", "At 0:07,"), "MM:SS.mmm"),
        ("I would rather not.", "plain text"),
    ],
    ids=["cut off", "falling times", "other clock", "prose"],
)
def test_complaints_are_sent_back_once(bad: str, words: str) -> None:
    with stub_endpoint(bad, GOOD) as stub:
        made = rewrite(stub)
    assert (made.prompt, made.tries, made.complaints) == (GOOD, 2, ())
    again = stub.asked[1]["messages"]
    assert again[2] == {"role": "assistant", "content": bad} and words in again[3]["content"]


def test_what_is_still_wrong_is_said() -> None:
    """No third try; the better of the two is taken, and an endpoint that fails at the second leaves the first."""
    worse, better = GOOD.replace("00:03.500", "3").replace("00:07.250", "7"), GOOD.replace("00:07.250", "7")
    for answers in ([worse, better], [better, worse], [better, (503, b"")]):
        with stub_endpoint(*answers) as stub:
            made = rewrite(stub)
        assert made.prompt == better and made.tries == len(stub.asked) == 2
        assert [c.kind for c in made.complaints] == ["cuts"]


def test_the_alignment_line_is_ours() -> None:
    """Of the right time and the last shot, whatever a model makes of it."""
    wanted, good = correct()["door"]
    wrong = good.replace("10.12-second", "10.125-second").replace("Picture 2 (from Shot 2)", "Picture 2 (from Shot 1)")
    with stub_endpoint(wrong) as stub:
        assert rewrite(stub, wanted=wanted).prompt == good
    assert "Picture 2 is the last frame" in stub.asked[0]["messages"][1]["content"][0]["text"]


def test_images_are_sent_as_parts_made_small(tmp_path: Path) -> None:
    Image.new("RGB", (2000, 1000), "teal").save(tmp_path / "a.png")
    fields = request_of("ref2va", "", "image audio image", "8")
    for condition in fields["conditions"]:
        condition["uri"] = str(tmp_path / "a.png")
    images = shown_images(parse_request(fields))
    with stub_endpoint(correct()["pets"][1]) as stub:
        rewrite(stub, wanted=needs("ref2va", "", "image audio image"), images=images)
    parts = stub.asked[0]["messages"][1]["content"]
    assert [part.get("text") for part in parts[1:]] == ["Picture 1:", None, "Picture 2:", None]
    data = base64.b64decode(parts[2]["image_url"]["url"].removeprefix("data:image/jpeg;base64,"))
    assert Image.open(io.BytesIO(data)).size == (768, 384)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"enhance_model": "m"}, "--enhance-model"),
        ({"enhance_url": "http://localhost/v1"}, "--enhance-model"),
        ({"enhance_url": "file:///etc/passwd", "enhance_model": "m"}, "--enhance-url"),
        (
            {"enhance_url": "http://localhost/v1", "enhance_model": "m", "enhance_key": Path("/no/such")},
            "--enhance-key",
        ),
    ],
)
def test_half_an_endpoint_is_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        open_endpoint(EnhanceSettings(**settings))
    assert caught.value.field == field


def test_a_key_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-2\n")
    endpoint = open_endpoint(EnhanceSettings("http://localhost/v1/", "m", tmp_path / "key"))
    assert endpoint is not None and endpoint.key == "sk-2"
    (tmp_path / "key").write_text("sk-2\nsk-3\n")
    with pytest.raises(RequestError, match="one key"):
        open_endpoint(EnhanceSettings("http://localhost/v1/", "m", tmp_path / "key"))
