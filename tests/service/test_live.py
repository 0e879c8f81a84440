"""A whole server over a real socket: create, watch, fetch, delete; and how a server ends."""

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import pytest
from PIL import Image

from h3serve.core.errors import H3Error
from h3serve.service.http.server import serve
from h3serve.service.service_settings import ServiceSettings
from tests.service.client import T2VA, LiveServer, live, wait_for
from tests.service.workers.test_worker_process import is_alive

FINAL = ("completed", "failed", "cancelled")


def create(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    reply = http.post("/v1/videos", json={**T2VA, **changes})
    assert reply.status_code == 200, reply.text
    video: dict[str, Any] = reply.json()
    return video


def finish(http: httpx.Client, video_id: str) -> dict[str, Any]:
    def ended() -> Any:
        video = http.get(f"/v1/videos/{video_id}").json()
        return video if video["status"] in FINAL else None

    video: dict[str, Any] = wait_for(ended)
    return video


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "teal").save(file, "png")
    return file.getvalue()


def test_create_watch_fetch_delete(http: httpx.Client, server: LiveServer) -> None:
    video = create(http)
    assert video["status"] in ("queued", "in_progress") and video["size"] == "128x64"
    video = finish(http, video["id"])
    assert video["status"] == "completed" and video["progress"] == 100 and video["error"] is None
    content = http.get(f"/v1/videos/{video['id']}/content")
    assert content.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(content.content)) as box:
        assert len(box.streams.video) == len(box.streams.audio) == 1
    assert http.delete(f"/v1/videos/{video['id']}").json()["deleted"] is True
    for path in ("", "/content", "/events"):
        assert http.get(f"/v1/videos/{video['id']}{path}").status_code == 404
    assert not (server.data / "jobs" / video["id"]).exists()


def test_ranges_etag_and_variants(http: httpx.Client) -> None:
    url = f"/v1/videos/{finish(http, create(http)['id'])['id']}/content"
    whole = http.get(url)
    part = http.get(url, headers={"Range": "bytes=10-19"})
    assert part.status_code == 206 and part.content == whole.content[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.content)}"
    tail = http.get(url, headers={"Range": "bytes=-5", "If-Range": whole.headers["etag"]})
    assert tail.content == whole.content[-5:]
    stale = http.get(url, headers={"Range": "bytes=0-4", "If-Range": '"other"'})
    assert stale.status_code == 200 and stale.content == whole.content
    assert http.get(url, headers={"Range": f"bytes={len(whole.content)}-"}).status_code == 416
    assert http.get(url, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    head = http.head(url)
    assert head.headers["content-length"] == str(len(whole.content)) and not head.content
    assert http.get(url, params={"variant": "audio"}).headers["content-type"] == "audio/mp4"
    thumbnail = http.get(url, params={"variant": "thumbnail"})
    assert Image.open(io.BytesIO(thumbnail.content)).format == "JPEG"
    assert http.get(url, params={"variant": "spritesheet"}).json()["error"]["param"] == "variant"


@pytest.mark.parametrize(
    "header",
    [
        *(
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-2",
            "bytes=0-4,x",
            "bytes=1",
            "bytes 0-4",
            "=",
            "bytes=--4",
        ),
        *("items=0-4", "bytes=0x1-4", "bytes=" + "9" * 5000 + "-", "bytes=+1-4", "bytes=1_0-20", "bytes=0-4;1"),
    ],
)
def test_a_range_that_is_none_is_ignored(http: httpx.Client, finished: str, header: str) -> None:
    """RFC 9110 14.2: an unknown unit is ignored, and so may be an invalid specifier."""
    reply = http.get(f"/v1/videos/{finished}/content", headers={"Range": header})
    assert reply.status_code == 200 and reply.content[4:8] == b"ftyp" and "content-range" not in reply.headers


@pytest.fixture(scope="module")
def finished(http: httpx.Client) -> str:
    return str(finish(http, create(http)["id"])["id"])


def test_sync_replies_with_the_video(http: httpx.Client) -> None:
    reply = http.post("/v1/videos/sync", data={"prompt": "a", "seconds": "4", "size": "64x64"}, files={"x": b""})
    assert reply.status_code == 400  # an upload that nobody names
    reply = http.post("/v1/videos/sync", json=T2VA, headers={"Idempotency-Key": "sync"})
    assert reply.status_code == 200 and reply.headers["content-type"] == "video/mp4" and reply.content[4:8] == b"ftyp"
    job = reply.headers["x-video-id"]
    assert http.get(f"/v1/videos/{job}/content").content == reply.content
    again = http.post("/v1/videos/sync", json=T2VA, headers={"Idempotency-Key": "sync"})
    assert again.headers["x-video-id"] == job and again.content == reply.content
    for prompt, status, code in (("wrong", 400, "invalid_request"), ("oom", 500, "out_of_memory")):
        failed = http.post("/v1/videos/sync", json={**T2VA, "prompt": prompt})
        assert failed.status_code == status and failed.json()["error"]["code"] == code
        assert http.get(f"/v1/videos/{failed.headers['x-video-id']}").json()["status"] == "failed"


def test_a_sync_client_that_leaves_cancels_its_video(http: httpx.Client, server: LiveServer) -> None:
    with server.client() as other, pytest.raises(httpx.ReadTimeout):
        other.post("/v1/videos/sync", json={**T2VA, "prompt": "slow 1 left alone"}, timeout=1.5)
    newest = http.get("/v1/videos", params={"limit": 1}).json()["data"][0]
    assert newest["prompt"] == "slow 1 left alone"
    assert finish(http, newest["id"])["status"] == "cancelled"


def test_a_failure_names_the_file_that_was_sent(http: httpx.Client) -> None:
    form = {"prompt": "unreadable", "size": "64x64"}
    first = http.post("/v1/videos", data=form, files={"input_reference": ("My holiday.PNG", picture())}).json()
    message = "conditions[0]: 'My holiday.PNG' is not usable: the picture is damaged"
    assert finish(http, first["id"])["error"] == {"code": "invalid_media", "message": message}
    again = http.post("/v1/videos", json=first["request"]).json()
    assert finish(http, again["id"])["error"]["message"] == message


def test_events_end_with_the_final_state(http: httpx.Client) -> None:
    video = create(http, prompt="slow 0.1")
    seen: list[tuple[str, dict[str, Any]]] = []
    with http.stream("GET", f"/v1/videos/{video['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                seen.append((name, json.loads(line.removeprefix("data: "))))
    assert [n for n, _ in seen][-1] == "completed" and seen[-1][1]["id"] == video["id"]
    steps = [data["step"] for n, data in seen if n == "progress" and data["stage"] == "denoise"]
    assert steps == sorted(steps) and len(set(steps)) >= 2
    assert any(data["seconds_left"] for n, data in seen if n == "progress")


def test_one_stream_tells_of_all_videos(http: httpx.Client, server: LiveServer) -> None:
    early = create(http, prompt="slow 0.1")
    seen: list[tuple[str, str, str]] = []
    late: dict[str, Any] = {}
    with server.client() as other, other.stream("GET", "/v1/videos/events") as stream:
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                seen.append((name, data["id"], data["status"] if name != "deleted" else ""))
                if len(seen) == 1:
                    late = create(http, prompt="b")
                elif name == "completed" and data["id"] == late["id"]:
                    http.delete(f"/v1/videos/{early['id']}")
                elif name == "deleted":
                    break
    assert seen[0][:2] == ("created", early["id"]) and seen[-1] == ("deleted", early["id"], "")
    for video in (early, late):
        names = [name for name, of, _ in seen if of == video["id"]]
        assert names.count("created") == 1 and names[0] == "created" and names.count("completed") == 1
        assert names.count("progress") >= 2
    assert {of for _, of, _ in seen} == {early["id"], late["id"]}


def test_cancel_and_content_before_and_after(http: httpx.Client) -> None:
    running, queued = create(http, prompt="slow 0.5"), create(http)
    wait_for(lambda: http.get(f"/v1/videos/{running['id']}").json()["stage"] == "denoise")
    early = http.get(f"/v1/videos/{running['id']}/content")
    assert early.status_code == 409 and early.json()["error"]["code"] == "not_ready"
    assert http.post(f"/v1/videos/{queued['id']}/cancel").json()["status"] == "cancelled"
    assert http.post(f"/v1/videos/{running['id']}/cancel").json()["cancel_requested"] is True
    assert finish(http, running["id"])["status"] == "cancelled"
    late = http.get(f"/v1/videos/{running['id']}/content")
    assert late.status_code == 409 and late.json()["error"]["code"] == "job_cancelled"
    again = http.post(f"/v1/videos/{running['id']}/cancel")
    assert again.status_code == 200 and again.json()["status"] == "cancelled"
    assert finish(http, create(http)["id"])["status"] == "completed"


def test_repeat_a_video_with_its_inputs_and_another_seed(http: httpx.Client) -> None:
    body = {"task": "fl2va", "prompt": "a lion", "target": {"short_edge": 64, "duration_seconds": 4.0}}
    body["conditions"] = [{"type": "image", "uri": "first.png", "role": "keyframe", "frame_index": 0}]
    files = {"first": ("first.png", picture(), "image/png")}
    first = http.post("/v1/videos", data={"request": json.dumps(body)}, files=files).json()
    assert first["request"]["conditions"][0]["uri"] == f"job:{first['id']}/00.png"
    second = http.post("/v1/videos", json={**first["request"], "seed": 7}).json()
    done = [finish(http, v["id"]) for v in (first, second)]
    assert [v["status"] for v in done] == ["completed", "completed"]
    assert done[0]["files"]["video"]["sha256"] != done[1]["files"]["video"]["sha256"]


def test_metrics_and_one_summary_line_per_job(http: httpx.Client, server: LiveServer) -> None:
    video = finish(http, create(http)["id"])
    lines = wait_for(lambda: [e for e in server.log if e.get("job") == video["id"]])
    assert [line["message"] for line in lines] == ["job completed"]
    assert lines[0]["attempts"] == 1 and lines[0]["ran_s"] >= 0 and "denoise" in lines[0]["stats"]["seconds"]
    text = http.get("/metrics").text
    for name in ("queue_depth 0.0", "queue_wait_seconds_count", 'stage_seconds_count{stage="denoise"}'):
        assert f"h3serve_{name}" in text
    for name in ("steps_per_second ", 'memory_peak_bytes{kind="device",phase="load"} 1000.0', "workers{"):
        assert f"h3serve_{name}" in text


def test_a_client_that_leaves_mid_download_harms_nothing(http: httpx.Client, server: LiveServer) -> None:
    video = finish(http, create(http)["id"])
    with server.client() as other, other.stream("GET", f"/v1/videos/{video['id']}/content") as stream:
        next(stream.iter_raw(16))
    assert http.get("/health").status_code == 200
    assert len(http.get(f"/v1/videos/{video['id']}/content").content) == video["files"]["video"]["bytes"]


def test_a_client_that_leaves_mid_upload_leaves_no_file(http: httpx.Client, server: LiveServer) -> None:
    def half() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n' + b"p" * 200_000
        wait_for(lambda: list((server.data / "incoming").iterdir()))
        raise ConnectionAbortedError

    headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "9000000"}
    before = len(http.get("/v1/videos", params={"limit": 100}).json()["data"])
    with server.client() as other, pytest.raises((ConnectionAbortedError, httpx.HTTPError)):
        other.post("/v1/videos", content=half(), headers=headers)
    wait_for(lambda: not list((server.data / "incoming").iterdir()))
    assert len(http.get("/v1/videos", params={"limit": 100}).json()["data"]) == before


def test_four_lives_of_one_data_folder(tmp_path: Path) -> None:
    """kill -9, two signals, one signal: nothing accepted is lost, whatever ends the server."""
    with live(tmp_path / "data") as server, server.client() as http:
        running, queued = create(http, prompt="slow 0.5", seed=5), create(http, seed=5)
        wait_for(lambda: http.get(f"/v1/videos/{running['id']}").json()["stage"] == "denoise")
        workers = [e["pid"] for e in server.log if e["message"] == "ready"]
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(map(is_alive, workers)), 10)
    with live(tmp_path / "data") as server, server.client() as http:
        done = [finish(http, v["id"]) for v in (running, queued)]
        assert [v["status"] for v in done] == ["completed", "completed"]
        assert [v["attempts"] for v in done] == [2, 1]
        assert done[0]["files"]["video"]["sha256"] == done[1]["files"]["video"]["sha256"]
        endless = create(http, prompt="slow 5")  # may begin again before it is cancelled: then it stops at a step
        wait_for(lambda: http.get(f"/v1/videos/{endless['id']}").json()["status"] == "in_progress")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: http.get("/ready").json()["draining"])
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
    with live(tmp_path / "data") as server, server.client() as http:
        row = http.get(f"/v1/videos/{endless['id']}").json()
        assert row["status"] in ("queued", "in_progress") and row["attempts"] <= 1
        http.post(f"/v1/videos/{endless['id']}/cancel")
        running, queued = create(http, prompt="slow 0.2"), create(http)
        wait_for(lambda: http.get(f"/v1/videos/{running['id']}").json()["status"] == "in_progress")
        server.process.send_signal(signal.SIGTERM)
        refused = wait_for(lambda: (r := http.post("/v1/videos", json=T2VA)).status_code == 503 and r)
        assert refused.headers["retry-after"]
        assert http.get("/ready").json()["draining"] is True
        assert server.process.wait(20) == 0
    with live(tmp_path / "data") as server, server.client() as http:
        assert http.get(f"/v1/videos/{endless['id']}").json()["status"] == "cancelled"
        assert http.get(f"/v1/videos/{running['id']}").json()["status"] == "completed"
        assert finish(http, queued["id"])["status"] == "completed"
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0


def test_a_failing_load_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with live(tmp_path / "data", model="missing") as server:
        assert server.process.wait(20) == 1
        server.end()
        assert any("has no model_index.json" in e["message"] for e in server.log)
        assert not any("Traceback" in e["message"] for e in server.log)
        assert list(tmp_path.iterdir()) == []
        workers = [e["pid"] for e in server.log if e["message"] == "worker starts"]
        assert len(workers) == 1 and not any(map(is_alive, workers))


@pytest.mark.usefixtures("no_logs")
def test_a_port_or_a_folder_in_use_is_one_sentence(server: LiveServer, http: httpx.Client, tmp_path: Path) -> None:
    for settings, words in (
        ({"port": server.port, "data": tmp_path / "data"}, "cannot listen on 127.0.0.1"),
        ({"port": 0, "data": server.data}, "another server is using the data folder"),
    ):
        with pytest.raises(H3Error, match=words):
            serve(ServiceSettings("demo-random", **settings), command=["false"])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert http.get("/health").status_code == 200 and server.data.is_dir()
