"""The reply with a finished file: what a client that already has it is told (RFC 9110, 13.1.2)."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.retry import settle
from tests.service.client import client_of, context_of
from tests.service.make import put, take, whole_attempt

CONTENT = b"0123456789" * 20
ETAG = f'"{"0" * 64}"'  # the checksum that `whole_attempt` writes down


@pytest.fixture(name="http")
def client(store: JobStore, folder: DataFolder) -> Iterator[TestClient]:
    with client_of(context_of(store, folder)) as http:
        yield http


@pytest.fixture
def url(store: JobStore, folder: DataFolder) -> str:
    put(store)
    job = take(store)
    files = whole_attempt(folder, job, CONTENT)["files"]
    settle(store, folder, job, Outcome(State.COMPLETED, files=files))  # type: ignore[arg-type]
    return f"/v1/videos/{job.id}/content"


def test_the_file_with_its_tag(http: TestClient, url: str) -> None:
    reply = http.get(url)
    assert reply.status_code == 200 and reply.content == CONTENT
    assert reply.headers["etag"] == ETAG and reply.headers["content-type"] == "video/mp4"


@pytest.mark.parametrize("known", [ETAG, f"W/{ETAG}", f'"other", {ETAG}', f'"other" ,W/{ETAG}', "*"])
def test_who_has_it_is_not_sent_it_again(http: TestClient, url: str, known: str) -> None:
    reply = http.get(url, headers={"If-None-Match": known})
    assert reply.status_code == 304 and not reply.content and reply.headers["etag"] == ETAG


@pytest.mark.parametrize("unknown", ['"other"', f"w/{ETAG}", ETAG.strip('"'), ""])
def test_who_has_another_is(http: TestClient, url: str, unknown: str) -> None:
    assert http.get(url, headers={"If-None-Match": unknown}).content == CONTENT


def test_what_this_video_does_not_have(http: TestClient, url: str) -> None:
    reply = http.get(url, params={"variant": "thumbnail"})
    assert reply.status_code == 404 and reply.json()["error"]["message"] == "this video has no thumbnail"
