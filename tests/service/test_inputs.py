"""Whose inputs a job has: its own bytes, or those of an earlier job of the same key."""

import io
from collections.abc import Iterator

import pytest
from PIL import Image
from starlette.testclient import TestClient

from h3serve.service.http.api_keys import Caller, KeyRing, hash_key
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import client_of, context_of


def png(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def http(store: JobStore, folder: DataFolder) -> Iterator[TestClient]:
    ring = KeyRing((Caller("ann", hash_key("a")), Caller("bob", hash_key("b"))))
    with client_of(context_of(store, folder, ring)) as client:
        yield client


def send(http: TestClient, key: str, image: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    reply = http.post(
        "/v1/videos",
        data={"prompt": "a lion", "size": "1280x720"},
        files={"input_reference": ("same.png", image, "image/png")},
        headers={"Authorization": f"Bearer {key}", **headers},
    )
    return reply.status_code, reply.json()


def test_an_idempotency_key_with_another_image_is_a_reuse(http: TestClient, store: JobStore) -> None:
    """All else is the same, the file's name and size in pixels too: it is a request for another video."""
    status, first = send(http, "a", png("red"), **{"Idempotency-Key": "k"})
    assert status == 200
    assert send(http, "a", png("red"), **{"Idempotency-Key": "k"})[1]["id"] == first["id"]
    status, reply = send(http, "a", png("blue"), **{"Idempotency-Key": "k"})
    assert status == 409 and "Idempotency-Key" in str(reply["error"])
    assert store.ids() == {first["id"]}


@pytest.mark.parametrize(("key", "status"), [("a", 200), ("b", 400)])
def test_an_earlier_jobs_inputs_are_its_keys_own(http: TestClient, store: JobStore, key: str, status: int) -> None:
    _, first = send(http, "a", png("red"))
    body = dict(first["request"])  # type: ignore[call-overload]
    assert body["conditions"][0]["uri"].startswith(f"job:{first['id']}/")
    reply = http.post("/v1/videos", json=body, headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == status, reply.text
    assert len(store.ids()) == (2 if status == 200 else 1)
