"""Bodies over the route that plans them: it reads, checks and keeps nothing."""

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import BodyLimits
from tests.service.client import T2VA, client_of, context_of

LIMITS = BodyLimits(body=50_000, file=20_000, json=10_000, field=5_000, files=2, fields=4)
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.fixture
def http(store: JobStore, folder: DataFolder) -> Iterator[TestClient]:
    with client_of(context_of(store, folder, limits=LIMITS)) as client:
        yield client
    assert list((folder.root / "incoming").iterdir()) == []
    assert list((folder.root / "jobs").iterdir()) == []


def part(name: str, value: str, filename: str | None = None) -> str:
    more = "" if filename is None else f'; filename="{filename}"'
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


def test_json_and_form_give_the_same_plan(http: TestClient) -> None:
    plain = http.post("/v1/plan", json=T2VA)
    assert plain.status_code == 200 and plain.json()["frames"] == 107
    fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in T2VA.items()}
    boxed = {"request": json.dumps(T2VA)}
    bracketed = {"task": "t2va", "prompt": "a lion", "target[short_edge]": "64", "target[duration_seconds]": "4"}
    for form in (fields, boxed, bracketed):
        reply = http.post("/v1/plan", content="".join(part(*p) for p in form.items()) + "--b--\r\n", headers=FORM)
        assert reply.json() == plain.json()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "one JSON object"),
        (b"[]", 400, "one JSON object"),
        (b"[" * 5000, 400, "one JSON object"),
        (b"", 400, "one JSON object"),
        (b'{"prompt": "\\ud800"}', 400, "one JSON object"),
        (b"\xff\xfe", 400, "one JSON object"),
        (b'{"prompt": "a", "prompt": "b"}', 400, "given twice"),
        (b'{"prompt": "a", "flow_shift": NaN}', 400, "no such number"),
        (b'{"prompt": "' + b"x" * 20_000 + b'"}', 413, "larger than 10000 bytes"),
    ],
)
def test_bad_json(http: TestClient, body: bytes, status: int, words: str) -> None:
    reply = http.post("/v1/plan", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status and words in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("nonsense", 400, "not whole multipart"),
        (part("prompt", "a"), 400, "ends too early"),
        (part("prompt", "a") + part("prompt", "b") + "--b--\r\n", 400, "given twice"),
        ("--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", 400, "needs a name"),
        (part("prompt", "x" * 6000) + "--b--\r\n", 413, "part 'prompt' is larger than 5000"),
        (part("f", "x" * 21_000, "a.png") + "--b--\r\n", 413, "part 'f' is larger than 20000"),
        ("".join(part("f", "x", "a") for _ in range(3)) + "--b--\r\n", 400, "too many files"),
        ("".join(part(f"f{i}", "x") for i in range(5)) + "--b--\r\n", 400, "too many fields"),
        ("".join(part("f", "x" * 19_000, "a") for _ in range(3)) + "--b--\r\n", 413, "the body is larger"),
        (part("request", "3") + "--b--\r\n", 400, "one JSON object"),
        (part("request", '{"prompt":"a"}') + part("prompt", "b") + "--b--\r\n", 400, "given both inside"),
        (part("target", "1") + part("target[short_edge]", "64") + "--b--\r\n", 400, "target is given twice"),
    ],
)
def test_bad_forms(http: TestClient, body: str, status: int, words: str) -> None:
    reply = http.post("/v1/plan", content=body, headers=FORM)
    assert reply.status_code == status, reply.text
    assert words in reply.json()["error"]["message"]


def test_a_body_without_a_length_is_stopped_by_count(http: TestClient) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    reply = http.post("/v1/plan", content=endless(), headers={"Content-Type": "application/json"})
    assert reply.status_code == 413


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types(http: TestClient, kind: str) -> None:
    reply = http.post("/v1/plan", content=b"prompt=a", headers={"Content-Type": kind})
    assert reply.status_code in (400, 415) and reply.json()["error"]["message"]


def test_every_part_is_used_or_refused(http: TestClient) -> None:
    reply = http.post("/v1/plan", data={"prompt": "a"}, files={"stray": ("stray.png", b"x")})
    assert reply.status_code == 400 and "stray" in reply.json()["error"]["message"]
