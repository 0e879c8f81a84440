"""The routes without workers: what is accepted, refused, listed; limits, keys, disks that fail."""

import base64
import errno
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from h3serve.core.estimate_work import ModelSize
from h3serve.service.http.api_keys import Caller, KeyRing, hash_key
from h3serve.service.http.context import Context
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import T2VA, client_of, context_of
from tests.service.fake_worker import SMALL
from tests.service.make import put, take

KEYS = KeyRing(
    (Caller("ann", hash_key("ann-key"), max_queued=2), Caller("bob", hash_key("bob-key"), max_priority=5)),
)
ANN, BOB = ({"Authorization": f"Bearer {name}-key"} for name in ("ann", "bob"))


@pytest.fixture
def context(store: JobStore, folder: DataFolder) -> Context:
    return context_of(store, folder)


@pytest.fixture
def http(context: Context) -> Iterator[TestClient]:
    with client_of(context) as client:
        yield client


def changed(**changes: Any) -> dict[str, Any]:
    return {**T2VA, **changes}


def target(**changes: Any) -> dict[str, Any]:
    return changed(target={**T2VA["target"], **changes})  # type: ignore[dict-item]


def test_what_cannot_fit_is_refused_with_the_numbers(http: TestClient, context: Context, folder: DataFolder) -> None:
    long = target(short_edge=768, duration_seconds=15)
    assert http.post("/v1/plan", json=long).status_code == 200  # as long as no worker has said what it holds
    context.supervisor.slots[0].capacity = SMALL
    for path in ("/v1/plan", "/v1/videos"):
        refused = http.post(path, json=long)
        assert refused.status_code == 422 and refused.json()["error"]["code"] == "does_not_fit"
        assert "14.00 GiB are usable (15.00 GiB free" in refused.json()["error"]["message"]
        assert http.post(path, json=T2VA).status_code == 200
    assert len(context.store.ids()) == 1 and list((folder.root / "incoming").iterdir()) == []


def test_a_plan_shows_the_memory_of_the_loaded_model(http: TestClient, context: Context) -> None:
    """By arithmetic: rows * (4 * 8 + max(4 * 16, 3 * 32)) values of 4 bytes, far less than a gigabyte of weights."""
    context.supervisor.slots[0].model_size = ModelSize(8, 16, 32, 2, 2**28, 1000, value_bytes=4)
    plan = http.post("/v1/plan", json=T2VA).json()
    assert plan["peak_gib"] == pytest.approx(1 + plan["rows"]["total"] * 128 * 4 / 2**30, abs=2e-3)
    assert http.post("/v1/videos", json=T2VA).json()["plan"]["peak_gib"] == plan["peak_gib"]


WRONG: list[tuple[dict[str, Any], str]] = [
    (changed(seed=-1), "seed"),
    (changed(seed=2**63), "seed"),
    (changed(seed="1"), "seed"),
    (changed(num_inference_steps=0), "num_inference_steps"),
    (changed(num_inference_steps=10_000), "num_inference_steps"),
    (changed(guidance_scale=5), "guidance_scale"),
    (changed(negative_prompt="bad"), "negative_prompt"),
    (changed(fps=30), "fps"),
    (changed(n=2), "n"),
    (changed(quality="exact"), "quality"),
    (changed(response_format="b64_json"), "response_format"),
    (changed(unknown=1), "unknown"),
    (changed(prompt=""), "prompt"),
    (changed(prompt=7), "prompt"),
    (changed(prompt="a <|vision_start|>"), "prompt"),
    (changed(prompt="a lion " * 15_000), "prompt"),
    (changed(flow_shift=1e6), "flow_shift"),
    (changed(audio_flow_shift=1e39), "audio_flow_shift"),
    (changed(solver="ddim"), "solver"),
    (changed(sigmas=[1, 0.5, 0]), "sigmas"),
    (changed(sigmas={"video": [1, 0.5, 0.5, 0], "audio": [1, 0.5, 0.2, 0]}), "sigmas.video"),
    (changed(sigmas={"video": [1, 0.5, 0], "audio": [1, 0.5, 0]}, flow_shift=6.0), "flow_shift"),
    (changed(task="v2v"), "task"),
    (changed(priority=1), "priority"),
    (changed(priority=True), "priority"),
    (changed(webhook_url="https://example.com"), "webhook_url"),
    (changed(seconds="8"), "seconds"),
    (changed(conditions=[{"type": "image", "uri": "a.png", "role": "reference"}]), "conditions"),
    (target(duration_seconds=0.1), "target.duration_seconds"),
    (target(duration_seconds=16), "target.duration_seconds"),
    (target(aspect_ratio="adaptive"), "target.aspect_ratio"),
    (target(more=1), "target.more"),
    ({"prompt": "a", "seconds": "soon"}, "seconds"),
    ({"prompt": "a", "seconds": "3"}, "seconds"),
    ({"prompt": "a", "size": "big"}, "size"),
    ({"prompt": "a", "size": "1000x100"}, "size"),
    ({"prompt": "a", "input_reference": {"file_id": "file_1"}}, "input_reference"),
    ({"prompt": "a", "input_reference": 3}, "input_reference"),
    ({"prompt": "a", "input_reference": "/etc/passwd"}, "conditions[0]"),
    ({"prompt": "a", "input_reference": "data:image/png;base64,AAAA"}, "conditions[0]"),
    ({"prompt": "a", "input_reference": "data:image/png;base64,???"}, "conditions[0]"),
    ({}, "prompt"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_every_wrong_field_is_named_with_what_is_allowed(
    http: TestClient, store: JobStore, folder: DataFolder, body: dict[str, Any], param: str
) -> None:
    reply = http.post("/v1/videos", json=body)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["param"] == param, error
    assert error["type"] == "invalid_request_error" and error["allowed"] in error["message"]
    assert store.ids() == set() and list((folder.root / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "size", "seconds"),
    [
        ({"prompt": "a"}, "1344x768", "4"),
        ({"prompt": "a", "seconds": "12", "size": "720x1280"}, "768x1344", "12"),
        ({"prompt": "a", "seconds": 8, "size": "1792x1024", "model": "fake"}, "1344x768", "8"),
        ({"prompt": "a", "size": "864x480"}, "864x480", "4"),
        ({"prompt": "a", "size": "auto"}, "1344x768", "4"),
    ],
)
def test_openai_fields(http: TestClient, body: dict[str, Any], size: str, seconds: str) -> None:
    video = http.post("/v1/videos", json=body).json()
    assert (video["object"], video["size"], video["seconds"], video["status"]) == ("video", size, seconds, "queued")
    assert video["model"] == "fake" and video["progress"] == 0 and video["task"] == "t2va"


def test_a_task_without_its_weights_is_refused(store: JobStore, folder: DataFolder) -> None:
    with client_of(context_of(store, folder, partition="ref2va")) as http:
        error = http.post("/v1/videos", json=T2VA).json()["error"]
    assert error["param"] == "task" and error["allowed"] == "this server serves ref2va"


def test_no_such_model(http: TestClient) -> None:
    reply = http.post("/v1/videos", json=changed(model="sora-2"))
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"


def test_idempotency_over_http(http: TestClient, store: JobStore) -> None:
    key = {"Idempotency-Key": "k1"}
    first = http.post("/v1/videos", json=T2VA, headers=key).json()
    assert http.post("/v1/videos", json=T2VA, headers=key).json()["id"] == first["id"]
    other = http.post("/v1/videos", json=changed(seed=2), headers=key)
    assert other.status_code == 409 and "Idempotency-Key" in other.json()["error"]["message"]
    assert store.ids() == {first["id"]}


def test_an_empty_idempotency_key_is_none(http: TestClient, store: JobStore) -> None:
    for key in ("", "k" * 256):
        reply = http.post("/v1/videos", json=T2VA, headers={"Idempotency-Key": key})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "Idempotency-Key"
    assert store.ids() == set()


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "ftp://example.com/", "http://", "http:///a", "http://example.com:70000/", "http://a b.com/"),
        *(
            "https://example.com:0/",
            "http://user:word@example.com/",
            "http://-.com/",
            "http://a..b/",
            7,
            ["https://a.com"],
        ),
        *("http://127.0.0.1/", "http://localhost:8000/", "http://[::1]/", "http://169.254.169.254/", "http://10.1/"),
        *("http://example.com/\0", "http://example.com/" + "a" * 2000),
    ],
)
def test_a_webhook_that_could_never_be_delivered_is_refused(store: JobStore, folder: DataFolder, url: Any) -> None:
    with client_of(context_of(store, folder, webhook_secret=folder.root / "secret")) as http:
        reply = http.post("/v1/videos", json=changed(webhook_url=url))
        assert http.post("/v1/videos", json=changed(webhook_url="https://example.com/hook?a=1")).status_code == 200
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "webhook_url"
    assert len(store.ids()) == 1


@pytest.mark.parametrize("length", [1, 70, 256, 257, 5000])
def test_a_boundary_of_any_length_is_no_fault_of_the_server(http: TestClient, length: int) -> None:
    boundary = "b" * length
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na lion\r\n--{boundary}--\r\n'
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    reply = http.post("/v1/videos", content=part, headers=kind)
    assert reply.status_code == (200 if length <= 256 else 400), reply.text
    assert length <= 256 or "Boundary length" in reply.json()["error"]["message"]


def test_head_wherever_there_is_get(http: TestClient) -> None:
    video = http.post("/v1/videos", json=T2VA).json()["id"]
    for path in (
        *(
            "/",
            "/docs",
            "/web/page.js",
            "/health",
            "/ready",
            "/metrics",
            "/openapi.json",
            "/v1/models",
            "/v1/models/fake",
        ),
        *("/v1/videos", f"/v1/videos/{video}", f"/v1/videos/{video}/content", "/v1/videos/video_no"),
    ):
        head, whole = http.head(path), http.get(path)
        assert head.status_code == whole.status_code, path
        assert head.headers["content-type"] == whole.headers["content-type"]
    for path in ("/v1/videos/events", f"/v1/videos/{video}/events"):
        assert http.head(path).headers["content-type"] == "text/event-stream"
    assert http.head("/v1/plan").status_code == 405
    assert not any("head" in methods for methods in http.get("/openapi.json").json()["paths"].values())


def test_aliases_are_names_of_the_model(store: JobStore, folder: DataFolder) -> None:
    with client_of(context_of(store, folder, aliases=("sora-2", "a/b"))) as http:
        assert [m["id"] for m in http.get("/v1/models").json()["data"]] == ["fake", "sora-2", "a/b"]
        assert http.get("/v1/models/a/b").json()["root"] == "fake"
        assert http.post("/v1/videos", json=changed(model="sora-2")).json()["model"] == "fake"
        assert http.post("/v1/videos", json=changed(model="sora-2-pro")).status_code == 404


def test_a_full_queue_says_when_to_come_back(store: JobStore, folder: DataFolder) -> None:
    with client_of(context_of(store, folder, max_queued=2)) as http:
        replies = [http.post("/v1/videos", json=T2VA) for _ in range(4)]
    assert [r.status_code for r in replies] == [200, 200, 429, 429]
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert replies[-1].json()["error"]["type"] == "rate_limit_error"
    assert len(store.ids()) == 2


def test_pages(http: TestClient) -> None:
    made = [http.post("/v1/videos", json=T2VA).json()["id"] for _ in range(5)]
    seen: list[str] = []
    more: dict[str, Any] = {}
    while True:
        page = http.get("/v1/videos", params={"limit": 2, "order": "asc", **more}).json()
        seen += [video["id"] for video in page["data"]]
        if not page["has_more"]:
            break
        more = {"after": page["last_id"]}
    assert seen == made
    assert http.get("/v1/videos").json()["data"][0]["id"] == made[-1]
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        assert http.get("/v1/videos", params=wrong).json()["error"]["param"] in wrong
    assert http.get("/v1/videos", params={"after": "video_no"}).status_code == 404


def test_unknown_things_are_404_in_the_same_shape(http: TestClient) -> None:
    for method, path in (
        ("GET", "/v1/videos/video_no"),
        ("DELETE", "/v1/videos/video_no"),
        ("POST", "/v1/videos/video_no/cancel"),
        ("GET", "/v1/videos/video_no/content"),
        ("GET", "/v1/videos/video_no/events"),
        ("GET", "/v1/models/other"),
        ("GET", "/nowhere"),
        ("GET", "/v1/videos/..%2f..%2fetc%2fpasswd/content"),
        ("GET", "/v1/videos/video_%00"),
        ("DELETE", "/v1/videos/%00"),
        ("GET", "/v1/videos?after=%00"),
        ("GET", "/v1/models/%00"),
    ):
        reply = http.request(method, path)
        assert reply.status_code == 404 and set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert http.put("/v1/videos").status_code == 405


def test_expired_content_is_410_and_visible(http: TestClient, store: JobStore) -> None:
    put(store, plan={"width": 1, "height": 1})
    job = take(store)
    store.finish(job.id, Outcome(State.COMPLETED, files={}))
    store.expire(job.id)
    assert http.get(f"/v1/videos/{job.id}").json()["status"] == "expired"
    reply = http.get(f"/v1/videos/{job.id}/content")
    assert reply.status_code == 410 and reply.json()["error"]["code"] == "expired"


def test_a_failure_never_shows_a_path(http: TestClient, store: JobStore) -> None:
    put(store)
    job = take(store)
    store.finish(job.id, Outcome(State.FAILED, "internal", "cannot read /srv/models/h3/config.json"))
    error = http.get(f"/v1/videos/{job.id}").json()["error"]
    assert error == {"code": "internal", "message": "cannot read config.json"}


def test_keys(store: JobStore, folder: DataFolder) -> None:
    with client_of(context_of(store, folder, KEYS)) as http:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic ann-key"}):
            reply = http.get("/v1/videos", headers=headers)
            assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
            assert http.post("/v1/videos", json=T2VA, headers=headers).status_code == 401
            assert http.get("/metrics", headers=headers).status_code == 401
        assert http.get("/health").status_code in (200, 503) and http.get("/").status_code == 200
        mine = http.post("/v1/videos", json=T2VA, headers=ANN).json()
        assert http.get(f"/v1/videos/{mine['id']}", headers=BOB).status_code == 404
        assert http.delete(f"/v1/videos/{mine['id']}", headers=BOB).status_code == 404
        assert http.get("/v1/videos", headers=BOB).json()["data"] == []
        assert http.post("/v1/videos", json=changed(priority=5), headers=BOB).status_code == 200
        assert http.post("/v1/videos", json=changed(priority=1), headers=ANN).status_code == 400
        assert http.post("/v1/videos", json=T2VA, headers=ANN).status_code == 200
        full = http.post("/v1/videos", json=T2VA, headers=ANN)
        assert full.status_code == 429 and "this key" in full.json()["error"]["message"]


def test_inputs_of_another_key_cannot_be_named(store: JobStore, folder: DataFolder) -> None:
    job = put(store, owner="bob")
    folder.inputs(job.id).mkdir(parents=True)
    (folder.inputs(job.id) / "00.png").write_bytes(b"x")
    with client_of(context_of(store, folder, KEYS)) as http:
        body = {"prompt": "a", "input_reference": f"job:{job.id}/00.png"}
        reply = http.post("/v1/videos", json=body, headers=ANN)
    assert reply.status_code == 400 and "not here any more" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (OperationalError("x", {}, Exception("database is locked")), 503),
        (OperationalError("x", {}, Exception("attempt to write a readonly database")), 503),
        (OperationalError("x", {}, Exception("database or disk is full")), 507),
        (OSError(errno.ENOSPC, "No space left on device", "/srv/data"), 507),
        (OSError(errno.EROFS, "Read-only file system", "/srv/data"), 503),
        (RuntimeError("a bug in /srv/code.py"), 500),
    ],
)
def test_faults_are_clear_and_the_service_goes_on(
    http: TestClient,
    store: JobStore,
    folder: DataFolder,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    status: int,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise fault

    image = {"input_reference": ("a.png", png(), "image/png")}
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", fail)
        reply = http.post("/v1/videos", data={"prompt": "a"}, files=image)
    assert reply.status_code == status and "/srv" not in reply.text and "Traceback" not in reply.text
    assert reply.json()["error"]["type"] == "server_error" and "x-frame-options" in reply.headers
    assert list((folder.root / "incoming").iterdir()) == list((folder.root / "jobs").iterdir()) == []
    assert http.post("/v1/videos", data={"prompt": "a"}, files=image).status_code == 200


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "teal").save(file, "png")
    return file.getvalue()


def test_an_image_in_every_form(http: TestClient) -> None:
    uri = "data:image/png;base64," + base64.b64encode(png()).decode()
    file = {"input_reference": ("a.png", png(), "image/png")}
    replies = [
        http.post("/v1/videos", json={"prompt": "a", "input_reference": uri}),
        http.post("/v1/videos", json={"prompt": "a", "input_reference": {"image_url": uri}}),
        http.post("/v1/videos", data={"prompt": "a", "input_reference[image_url]": uri}, files={}),
        http.post("/v1/videos", data={"prompt": "a", "seconds": "8"}, files=file),
    ]
    assert [r.status_code for r in replies[:2] + replies[3:]] == [200, 200, 200], replies[-1].text
    assert replies[2].status_code == 415  # urlencoded: the reply says which forms are wanted
    assert {r.json()["task"] for r in replies[:2] + replies[3:]} == {"fl2va"}
    assert replies[3].json()["seconds"] == "8"


def test_the_inputs_go_with_the_job(http: TestClient, folder: DataFolder) -> None:
    file = {"input_reference": ("../../a.png", png(), "image/png")}
    video = http.post("/v1/videos", data={"prompt": "a"}, files=file).json()
    assert {p.name for p in folder.inputs(video["id"]).iterdir()} == {"00.png", "names.json"}
    assert str(folder.root) not in json.dumps(video)
    http.delete(f"/v1/videos/{video['id']}")
    assert list((folder.root / "jobs").iterdir()) == []


def test_security_headers_and_no_cors(http: TestClient) -> None:
    for path in ("/", "/v1/videos", "/nowhere", "/health"):
        headers = http.get(path, headers={"Origin": "https://evil.example"}).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in headers)
    assert "server" not in http.get("/health").headers


def test_another_site_cannot_write(http: TestClient, store: JobStore) -> None:
    evil = {"Origin": "https://evil.example"}
    assert http.post("/v1/videos", json=T2VA, headers=evil).status_code == 403
    assert http.post("/v1/videos", json=T2VA, headers={"Origin": "null"}).status_code == 403
    assert store.ids() == set()
    assert http.post("/v1/videos", json=T2VA, headers={"Origin": "http://testserver"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "MKCOL"])
def test_no_method_that_may_write_is_taken_from_another_site(http: TestClient, method: str) -> None:
    """RFC 9110, 9.2.1: all but GET, HEAD, OPTIONS and TRACE may change something."""
    assert http.request(method, "/v1/videos", headers={"Origin": "https://evil.example"}).status_code == 403
    assert http.request(method, "/v1/videos/video_no").status_code != 403


def test_requests_are_measured_by_route(http: TestClient) -> None:
    http.get("/v1/videos/video_no")
    http.request("BREW", "/v1/videos/video_no")
    text = http.get("/metrics").text
    name = "h3serve_http_request_seconds_count"
    assert f'{name}{{method="GET",route="/v1/videos/{{job_id}}",status="404"}} 1.0' in text
    assert 'method="other"' in text and "BREW" not in text and "video_no" not in text


def test_models_and_openapi(http: TestClient) -> None:
    model = http.get("/v1/models").json()["data"][0]
    assert model["id"] == "fake" and model["tasks"] == ["t2va", "fl2va", "ref2va"]
    assert http.get("/v1/models/fake").json() == model
    document = http.get("/openapi.json").json()
    wanted = {
        "/v1/videos", "/v1/videos/{job_id}", "/v1/videos/{job_id}/cancel", "/v1/videos/{job_id}/content",
        "/v1/videos/{job_id}/events", "/v1/plan", "/v1/models", "/health", "/ready", "/metrics",
    }  # fmt: skip
    assert wanted <= set(document["paths"])
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert named <= set(document["components"]["schemas"])


def test_a_path_is_never_the_models_name(store: JobStore, folder: DataFolder) -> None:
    with client_of(context_of(store, folder, model=str(folder.root))) as http:
        assert http.get("/v1/models").json()["data"][0]["id"] == folder.root.name


def test_plan_estimates_from_what_was_done_here(http: TestClient, store: JobStore, folder: DataFolder) -> None:
    first = http.post("/v1/plan", json=T2VA).json()
    assert first["object"] == "plan" and first["frames"] == 107 and first["estimated_seconds"] is None
    put(store, plan=first)
    job = take(store)
    store.finish(job.id, Outcome(State.COMPLETED, files={}))
    again = http.post("/v1/plan", json=T2VA).json()
    assert again["estimated_seconds"] is not None and len(store.ids()) == 1
    assert list((folder.root / "incoming").iterdir()) == []


@pytest.fixture
def adapters(store: JobStore, folder: DataFolder, tmp_path: Path) -> Iterator[TestClient]:
    """A server with a folder of two adapters, one of them below it, and a hidden file."""
    (tmp_path / "adapters" / "styles").mkdir(parents=True)
    for name in ("rain", "styles/cel", "styles/.part"):
        (tmp_path / "adapters" / f"{name}.safetensors").write_bytes(name.encode())
    with client_of(context_of(store, folder, adapter_folder=tmp_path / "adapters")) as client:
        yield client


def test_adapters_are_listed_by_name(adapters: TestClient, http: TestClient) -> None:
    listed = adapters.get("/v1/adapters").json()["data"]
    assert [(a["id"], a["bytes"]) for a in listed] == [("rain", 4), ("styles/cel", 10)]
    assert http.get("/v1/adapters").json() == {"object": "list", "data": []}


@pytest.mark.parametrize("field", ["adapters", "loras"])
def test_a_job_has_the_hash_of_each_adapter(adapters: TestClient, field: str) -> None:
    """So that another attempt has the same bytes, or fails in words."""
    digest = hashlib.sha256(b"styles/cel").hexdigest()
    chosen = [{"name": "styles/cel", "strength": -0.5}]
    flat = {"task": "t2va", "prompt": "a lion", "target": json.dumps(T2VA["target"]), "seed": "1"}
    flat |= {f"{field}[0][name]": "styles/cel", f"{field}[0][strength]": "-0.5"}
    for sent in (
        {"json": changed(**{field: chosen})},
        {"files": {"request": (None, json.dumps(changed(**{field: chosen})))}},
        {"files": {name: (None, text) for name, text in flat.items()}},
    ):
        job = adapters.post("/v1/videos", **sent)  # type: ignore[arg-type]
        assert job.status_code == 200, job.text
        assert job.json()["request"]["adapters"] == [{"name": "styles/cel", "strength": -0.5, "sha256": digest}]


@pytest.mark.parametrize(
    ("chosen", "param", "words"),
    [
        ([{"name": "snow"}], "adapters[0].name", "list of adapters"),
        ([{"name": "../adapters/rain"}], "adapters[0].name", "list of adapters"),
        ([{"name": "rain.safetensors"}], "adapters[0].name", "list of adapters"),
        ([{"name": "styles/.part"}], "adapters[0].name", "list of adapters"),
        ([{"name": "rain", "sha256": "0" * 64}], "adapters[0].sha256", "the file's hash is"),
        ([{"name": "rain", "sha256": "rain"}], "adapters[0].sha256", "64 hex digits"),
        ([{"name": "rain"}, {"name": "rain", "strength": 2}], "adapters[1].name", "once"),
        ([{"name": "rain", "strength": "strong"}], "adapters[0].strength", "a number from -10 to 10"),
        ([{"strength": 1}], "adapters[0].name", "required"),
        ("rain", "adapters", "a list of at most 8 adapters"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_refused(
    adapters: TestClient, chosen: Any, param: str, words: str, context: Context
) -> None:
    refused = adapters.post("/v1/videos", json=changed(adapters=chosen))
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == param and words in error["message"]
    assert not context.store.ids()


def test_a_server_without_a_folder_takes_no_adapters(http: TestClient) -> None:
    refused = http.post("/v1/videos", json=changed(adapters=[{"name": "/etc/passwd"}]))
    assert refused.status_code == 400 and "no adapter folder" in refused.json()["error"]["message"]
