"""The routes for prompts."""

import io

import pytest
from PIL import Image

from h3serve.prompts.endpoint import EnhanceSettings
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from tests.prompts.prompt_texts import correct, request_of
from tests.prompts.stub_endpoint import stub_endpoint
from tests.service.client import client_of, context_of

GOOD = correct()["harbour"][1]


def test_check(store: JobStore, folder: DataFolder) -> None:
    client = client_of(context_of(store, folder))
    body = request_of("t2va", "", "", "10", GOOD)
    assert client.post("/v1/prompt/check", json=body).json() == {"object": "prompt.check", "complaints": []}
    body["prompt"] = GOOD.replace("[Shot 3]", "[Shot 4]")
    [complaint] = client.post("/v1/prompt/check", json=body).json()["complaints"]
    assert body["prompt"][complaint["start"] : complaint["end"]] == "[Shot 4] At 00:07.250,"


def test_media_are_counted_and_not_looked_at(store: JobStore, folder: DataFolder) -> None:
    """Files that are not sent along are named by an address nobody can reach."""
    client = client_of(context_of(store, folder))
    body = request_of("ref2va", "", "video audio", "5", correct()["lamb"][1])
    for condition in body["conditions"]:
        condition["uri"] = "http://no.such.host.invalid/a"
    assert client.post("/v1/prompt/check", json=body).json()["complaints"] == []
    assert list(folder.root.glob("incoming/*")) == []


@pytest.mark.parametrize("body", [{"prompt": "a"}, {"task": "t2va", "prompt": "a", "guidance_scale": 3}])
def test_a_request_that_is_none_is_refused(store: JobStore, folder: DataFolder, body: dict[str, object]) -> None:
    reply = client_of(context_of(store, folder)).post("/v1/prompt/check", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"]


def test_template(store: JobStore, folder: DataFolder) -> None:
    client = client_of(context_of(store, folder))
    body = {**request_of("fl2va", "0 -1", "", "8"), "prompt": ""}
    text = client.post("/v1/prompt/template", params={"shots": 2}, json=body).json()["prompt"]
    assert text.startswith("How the reference pictures align") and "[Shot 2] At 00:04.000," in text
    assert client.post("/v1/prompt/template", params={"shots": 99}, json=body).status_code == 400


def test_enhance_is_off(store: JobStore, folder: DataFolder) -> None:
    client = client_of(context_of(store, folder))
    assert client.post("/v1/prompt/enhance", json=request_of("t2va", "", "", "10")).status_code == 403
    assert client.get("/v1/models").json()["data"][0]["enhances_prompts"] is False


def test_enhance_shows_the_endpoint_the_images(store: JobStore, folder: DataFolder) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (640, 360), "teal").save(picture, "PNG")
    good = correct()["portrait"][1]
    with stub_endpoint(good) as stub:
        client = client_of(context_of(store, folder, enhance=EnhanceSettings(stub.url, "writer")))
        assert client.get("/v1/models").json()["data"][0]["enhances_prompts"] is True
        form = {"prompt": "she looks up", "seconds": "8"}
        files = {"input_reference": ("a.png", picture.getvalue(), "image/png")}
        made = client.post("/v1/prompt/enhance", data=form, files=files).json()
    assert made["prompt"] == good and made["original"] == "she looks up" and made["object"] == "prompt.enhanced"
    assert [part["type"] for part in stub.asked[0]["messages"][1]["content"]] == ["text", "text", "image_url"]
    assert list(folder.root.glob("incoming/*")) == [] and not store.ids()


def test_an_endpoint_that_fails_is_a_bad_gateway(store: JobStore, folder: DataFolder) -> None:
    with stub_endpoint((500, b"")) as stub:
        client = client_of(context_of(store, folder, enhance=EnhanceSettings(stub.url, "writer")))
        reply = client.post("/v1/prompt/enhance", json=request_of("t2va", "", "", "10"))
    assert reply.status_code == 502 and reply.json()["error"]["message"].endswith("it answered 500")
