"""JSON that comes in pieces: what it means is what Python's json says; what it may cost is bounded."""

import base64
import io
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from h3serve.core.errors import RequestError
from h3serve.service.http.json_body import JsonBody, parse_json
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import client_of, context_of

TEXTS = ["", "a", '"', "\\", "\\\\", '\\"', "/", "\n\t", "é", "\U0001f98a", "data:x", "[{,", "\u2028", "x" * 70_000]


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {f"{rng.choice(TEXTS[:13])}{i}": value(rng, depth + 1) for i in range(rng.randrange(4))}
    return (rng.choice(TEXTS), rng.randrange(-(10**6), 10**6), rng.random(), rng.random() < 0.5, None)[kind]


@pytest.mark.parametrize("seed", range(40))
def test_the_same_object_however_it_is_cut(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    wanted = {"a": value(rng), "b": value(rng), "c": rng.choice(TEXTS)}
    data = json.dumps(wanted, ensure_ascii=seed % 2 == 0, indent=rng.choice([None, 1])).encode()
    body = JsonBody(lambda number: tmp_path / str(number))
    at = 0
    while at < len(data):
        size = rng.choice([1, 2, 3, 5, 100, 30_000])
        body.feed(data[at : at + size])
        at += size
    assert body.finish() == wanted and body.media == []


@pytest.mark.parametrize("step", [1_000, 65_537, 10**7])
def test_media_go_into_files_and_every_escape_is_undone(step: int, tmp_path: Path) -> None:
    media = ["data:image/png;base64," + "ab/+" * 30_000, "BASE64://" + "\n\u00e9\\" * 30_000, "data:short"]
    data = json.dumps({"prompt": "a", "list": [{"uri": text} for text in media]}).replace("/", "\\/").encode()
    body = JsonBody(lambda number: tmp_path / str(number))
    for at in range(0, len(data), step):
        body.feed(data[at : at + step])
    found = body.finish()
    assert found["list"] == [{"uri": "upload:inline-0"}, {"uri": "upload:inline-1"}, {"uri": "data:short"}]
    assert [length for _, length in body.media] == [len(text) for text in media[:2]]
    assert [path.read_bytes().decode() for path, _ in body.media] == media[:2]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b'{"a": ' + b"[" * 5_000, RequestError, "at most 256 lists"),
        (b'{"a": [' + b"{}," * 4_000_000, RequestError, "at most 256 lists"),
        (b'{"a": [' + b'"",' * 4_000_000, RequestError, "2048 texts"),
        (b'{"a": [' + b"1," * 4_000_000, RequestError, "4096 items"),
        (b'{"a": ' + b" " * 4_000_000, Refusal, "1048576 bytes"),
        (b'{"a": "' + b"x" * 4_000_000, Refusal, "1048576 bytes"),
        (b'{"a": "data:\\uzzzz' + b"x" * 100_000, RequestError, "one JSON object"),
        (b'{"a": "data:' + b"x" * 100_000 + b"\n" + b"x" * 100_000, RequestError, "one JSON object"),
        (b'{"a": "data:' + b"x" * 100_000, RequestError, "one JSON object"),
        (b'{"a": "data:' + b"x" * 100_000 + b"\\", RequestError, "one JSON object"),
        (b'{"a": 1e400, "b": ' + b"9" * 5_000 + b"}", RequestError, "one JSON object"),
    ],
)
def test_what_no_request_has_is_refused_at_once(data: bytes, error: type, words: str, tmp_path: Path) -> None:
    body = JsonBody(lambda number: tmp_path / str(number))
    view, taken = memoryview(data), 0
    tracemalloc.start()
    with pytest.raises(error, match=words):
        for at in range(0, len(data), 2**18):
            body.feed(bytes(view[at : at + 2**18]))
            taken += 1
        body.finish()
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20 and taken <= 5
    tracemalloc.stop()


def test_text_at_hand_has_the_same_bounds() -> None:
    assert parse_json('{"a": "data:' + "x" * 100_000 + '"}')["a"].startswith("data:xx")
    with pytest.raises(RequestError, match="at most 256 lists"):
        parse_json(b'{"a": [' + b"{}," * 1_000 + b"{}]}")


@pytest.fixture
def http(store: JobStore, folder: DataFolder) -> Iterator[TestClient]:
    with client_of(context_of(store, folder)) as client:
        yield client
    assert list((folder.root / "incoming").iterdir()) == []


def png(pixels: int) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (pixels, pixels, 3), np.uint8)
    Image.fromarray(noise).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("form", ["data:image/png;base64,", "base64://", "percent"])
def test_a_large_image_inside_json_is_the_jobs_input(http: TestClient, folder: DataFolder, form: str) -> None:
    image = png(600)  # 1.4 MB in base64
    text = base64.b64encode(image).decode()
    uri = f"data:,{''.join(f'%{b:02x}' for b in image)}" if form == "percent" else form + text
    body: dict[str, Any] = {"prompt": "a lion", "seconds": 4, "input_reference": {"image_url": uri}}
    video = http.post("/v1/videos", json=body)
    assert video.status_code == 200, video.text
    (frozen,) = [p for p in folder.inputs(video.json()["id"]).iterdir() if p.read_bytes() == image]
    assert frozen.is_file()
    again = http.post("/v1/videos", json={**video.json()["request"], "seed": 7})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "data:" + "x" * 100_000}, "inline-0", "no condition names"),
        ({"prompt": "a", "input_reference": "data:image/png;base64," + "!" * 100_000}, "conditions[0]", "not base64"),
        ({"prompt": "a", "input_reference": "data:image/png" + "x" * 100_000}, "conditions[0]", "comma"),
        ({"prompt": "a", "input_reference": "data:;base64," + "A" * 100_001}, "conditions[0]", "cut off"),
    ],
)
def test_inline_media_that_are_none(http: TestClient, body: Any, param: str, words: str) -> None:
    reply = http.post("/v1/videos", json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param and words in error["message"], reply.text
    assert len(reply.text) < 2_000


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/admin/workers"), ("POST", "/v1/admin/weights"), ("GET", "/v1/videos")]
)
def test_other_routes_take_small_bodies_only(http: TestClient, method: str, path: str) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1_000

    for content in (b"{}" * 40_000, pieces()):
        reply = http.request(method, path, content=content, headers={"Content-Type": "application/json"})
        assert reply.status_code == (200 if method == "GET" else 413), reply.text


def test_bodies_leave_room_on_the_disk(store: JobStore, folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(context_of(store, folder))
    files = {"input_reference": ("a.png", png(300), "image/png")}
    assert client.post("/v1/plan", data={"prompt": "a"}, files=files).status_code == 200
    nearly = type("Usage", (), {"free": 256 * 2**20 - 1})
    monkeypatch.setattr("h3serve.service.jobs.data_folder.shutil.disk_usage", lambda _path: nearly)
    assert client.post("/v1/plan", data={"prompt": "a"}, files=files).status_code == 507
    assert client.post("/v1/plan", json={"prompt": "a"}).status_code == 200
