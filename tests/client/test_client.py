"""The client against a real server, and against connections that break at the worst places."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from h3serve import GenerationRequest
from h3serve.client import AsyncClient, Client, ServerLost, ServerRefused, Video
from h3serve.client.event_lines import EventLines
from h3serve.core.errors import OutputError, RequestError
from tests.service.client import T2VA, LiveServer, live, wait_for

CONTENT = bytes(range(256)) * 40
TAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
DONE = {"id": "v1", "status": "completed", "progress": 100}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live(tmp_path_factory.mktemp("live") / "data") as server:
        with server.client() as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        yield server


def url(server: LiveServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_a_video_from_its_request_to_its_file(server: LiveServer, tmp_path: Path) -> None:
    with Client(url(server)) as client:
        made = client.create({**T2VA, "prompt": "slow 0.2 a lion"}, priority=-3)
        assert made.status == "queued" and made.body["priority"] == -3
        seen = list(client.watch(made.id))
        assert seen[-1].status == "completed" and any(video.stage == "denoise" for video in seen)
        assert [video.progress for video in seen] == sorted(video.progress for video in seen)
        path = client.download(made.id, tmp_path / "a.mp4")
        told = client.get(made.id).body["files"]["video"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
        assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]
        assert client.videos(limit=1)[0].id == made.id
        client.delete(made.id)
        client.delete(made.id)  # as if the first answer had been lost
        with pytest.raises(ServerRefused, match="there is no video") as caught:
            client.get(made.id)
        assert caught.value.status == 404 and caught.value.code == "not_found"


def test_the_same_awaited(server: LiveServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncClient(url(server)) as client:
            made = await client.create(GenerationRequest.model_validate(T2VA))
            assert (await client.wait(made.id)).status == "completed"
            path = await client.download(made.id, tmp_path / "a.mp4")
            assert path.stat().st_size == (await client.get(made.id)).body["files"]["video"]["bytes"]
            slow = await client.create({**T2VA, "prompt": "slow 5 a lion"})
            await client.cancel(slow.id)
            assert (await client.wait(slow.id)).status == "cancelled"
            await client.delete(slow.id)
            assert slow.id not in [video.id for video in await client.videos(limit=100)]

    asyncio.run(run())


def test_one_key_makes_one_video(server: LiveServer) -> None:
    with Client(url(server)) as client:
        twice = [client.create(T2VA, idempotency_key="the same") for _ in range(2)]
    assert twice[0].id == twice[1].id


def test_files_here_are_sent_along(server: LiveServer, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "first.png")
    keyframe = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": str(tmp_path / "first.png")}
    request = {**T2VA, "task": "fl2va", "conditions": [keyframe]}
    with Client(url(server)) as client:
        made = client.create(request)
        again = made.body["request"]["conditions"][0]["uri"]
        assert again.startswith(f"job:{made.id}/")
        assert client.create({**request, "conditions": [{**keyframe, "uri": again}]}).status == "queued"
        with pytest.raises(RequestError, match=r"conditions\[0\]\.uri.*No such file"):
            client.create({**request, "conditions": [{**keyframe, "uri": str(tmp_path / "gone.png")}]})
    assert request["conditions"] == [keyframe]


def test_what_the_server_refuses_is_its_own_sentence(server: LiveServer, tmp_path: Path) -> None:
    with Client(url(server)) as client:
        with pytest.raises(ServerRefused, match="a whole number from 1 to") as caught:
            client.create({**T2VA, "num_inference_steps": 0})
        assert (caught.value.status, caught.value.param) == (400, "num_inference_steps")
        assert caught.value.exit_code == 2
        slow = client.create({**T2VA, "prompt": "slow 2 a lion"})
        with pytest.raises(ServerRefused, match="not ready"):
            client.download(slow.id, tmp_path / "a.mp4")
        client.cancel(slow.id)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """Who watches sees the end, and the video is made once."""
    with live(tmp_path / "data") as first:
        with first.client() as http:
            wait_for(lambda: http.get("/ready").status_code == 200)
        port = first.port
        with Client(f"http://127.0.0.1:{port}", patience=60) as client:
            made = client.create({**T2VA, "prompt": "slow 1 a lion"})
            seen: list[Video] = []
            watcher = threading.Thread(target=lambda: seen.extend(client.watch(made.id)), daemon=True)
            watcher.start()
            wait_for(lambda: any(video.status == "in_progress" for video in seen))
            first.end()
            time.sleep(0.5)
            with live(tmp_path / "data", port=port):
                watcher.join(60)
                assert seen[-1].status == "completed"
                assert [video.id for video in client.videos()] == [made.id]


# Connections that break, without a server -----------------------------------------------------------------------


class Broken(httpx.SyncByteStream):
    """A body that ends in the middle."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.ReadError("the connection broke")


def client_of(answer: Callable[[httpx.Request], httpx.Response], **how: Any) -> Client:
    return Client("http://server", transport=httpx.MockTransport(answer), **how)


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("range"))
        start = 1000 * (len(asked) - 1)
        if len(asked) < 4:
            headers = {"ETag": TAG}
            return httpx.Response(206 if start else 200, headers=headers, stream=Broken(CONTENT[start : start + 1000]))
        assert request.headers["if-range"] == TAG
        return httpx.Response(206, headers={"ETag": TAG}, content=CONTENT[start:])

    with client_of(answer) as client:
        assert client.download("v1", tmp_path / "a.mp4").read_bytes() == CONTENT
    assert asked == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]


def test_a_file_that_is_another_one_meanwhile_comes_whole(tmp_path: Path) -> None:
    answers = [httpx.Response(200, headers={"ETag": '"old"'}, stream=Broken(b"old" * 100))]
    answers.append(httpx.Response(200, headers={"ETag": TAG}, content=CONTENT))
    with client_of(lambda _: answers.pop(0)) as client:
        assert client.download("v1", tmp_path / "a.mp4").read_bytes() == CONTENT


def test_other_bytes_than_the_server_has_are_no_file(tmp_path: Path) -> None:
    with (
        client_of(lambda _: httpx.Response(200, headers={"ETag": TAG}, content=b"other")) as client,
        pytest.raises(OutputError, match="other bytes"),
    ):
        client.download("v1", tmp_path / "a.mp4")
    assert not list(tmp_path.iterdir())


def test_a_lost_answer_is_asked_for_again_with_the_same_key() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ReadError("the connection broke")
        if len(keys) == 2:
            return httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"message": "stopping"}})
        return httpx.Response(200, json={"id": "v1", "status": "queued"})

    with client_of(answer) as client:
        assert client.create(T2VA).id == "v1"
    assert len(keys) == 3 and len(set(keys)) == 1


def test_patience_ends() -> None:
    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with client_of(unreachable, patience=0.5) as client:
        for call in (lambda: client.get("v1"), lambda: list(client.watch("v1"))):
            with pytest.raises(ServerLost, match="cannot be reached: connection refused; tried for 0.5 s"):
                call()
    full = {"error": {"message": "the queue is full", "code": "queue_full"}}
    with (
        client_of(lambda _: httpx.Response(429, json=full), patience=0.5) as client,
        pytest.raises(ServerRefused, match="the queue is full"),
    ):
        client.create(T2VA)


def test_a_stream_that_ends_early_is_opened_again() -> None:
    streams = ['event: progress\ndata: {"id": "v1", "status": "queued"}\n\n', ": still here\n\n"]
    streams.append(f"event: completed\ndata: {str(DONE).replace(chr(39), chr(34))}\n\n")
    with client_of(lambda _: httpx.Response(200, text=streams.pop(0))) as client:
        assert [video.status for video in client.watch("v1")] == ["queued", "completed"]


def test_deleted_while_watched() -> None:
    text = 'event: deleted\ndata: {"id": "v1"}\n\n'
    with (
        client_of(lambda _: httpx.Response(200, text=text)) as client,
        pytest.raises(ServerRefused, match="was deleted"),
    ):
        client.wait("v1")


def test_a_proxys_page_is_no_riddle() -> None:
    with (
        client_of(lambda _: httpx.Response(413, text="<html>too large</html>")) as client,
        pytest.raises(ServerRefused, match="http://server/v1/videos/v1 replies HTTP 413"),
    ):
        client.get("v1")


def test_events_of_several_lines() -> None:
    lines = EventLines()
    given = ["event: progress", 'data: {"a":', "data: 1}", ": a comment", "", "", "data: {}", ""]
    assert [event for line in given if (event := lines.take(line))] == [("progress", {"a": 1}), ("message", {})]
