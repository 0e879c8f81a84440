"""Clients that are slow, silent, many or odd: the server stays reachable, and says little about them."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from h3serve.service.http.api_keys import add_key
from h3serve.service.http.connections import most_connections, raise_descriptor_limit
from tests.service.client import T2VA, LiveServer, live, wait_for

HALF_HEADER = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-More: "
HALF_BODY = (
    b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
)
QUICK = {"header_s": 1.0, "body_s": 1.0, "send_s": 1.0}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with short patience."""
    with live(tmp_path_factory.mktemp("quick") / "data", connections=QUICK) as server:
        with server.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200)
        yield server


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that may open 1,024 files."""
    with live(tmp_path_factory.mktemp("narrow") / "data", open_files=1024) as server:
        with server.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200)
        yield server


def connect(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("half", [HALF_HEADER, HALF_BODY, b""], ids=["header", "body", "nothing"])
def test_1100_half_sent_requests_at_1024_open_files(narrow: LiveServer, half: bytes) -> None:
    raise_descriptor_limit()  # this process holds the other ends
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(connect(narrow)).sendall(half)
        began = time.monotonic()
        for _ in range(20):
            with narrow.client() as honest:
                assert honest.get("/health").status_code == 200
                assert honest.post("/v1/plan", json=T2VA).status_code == 200
        assert time.monotonic() - began < 15  # seconds; their deadlines are later
    assert len(narrow.log) < 100 and not any("Traceback" in str(entry) for entry in narrow.log)


@pytest.mark.parametrize("half", [HALF_HEADER, HALF_BODY], ids=["header", "body"])
def test_a_request_that_is_not_sent_in_time_is_answered_408(quick: LiveServer, half: bytes) -> None:
    with connect(quick) as slow:
        began = time.monotonic()
        slow.sendall(half)
        reply = everything(slow)
        assert reply.startswith(b"HTTP/1.1 408 ") and b"not sent in time" in reply and b"connection: close" in reply
        assert 0.9 < time.monotonic() - began < 10


def test_drops_of_a_header_or_body_do_not_help(quick: LiveServer) -> None:
    for start in (HALF_HEADER, HALF_BODY.replace(b"99", b"99999")):
        with connect(quick) as slow:
            slow.sendall(start)
            began = time.monotonic()
            with pytest.raises(OSError):
                while time.monotonic() - began < 15:
                    slow.sendall(b"x" * 100)
                    time.sleep(0.1)


def test_a_body_that_comes_steadily_is_taken(quick: LiveServer) -> None:
    """Longer than the patience, but above the slowest rate."""

    def steady() -> Iterator[bytes]:
        yield b'{"prompt": "' + b" " * 10
        for _ in range(6):
            time.sleep(0.5)
            yield b"x" * 32_000
        yield b'"}'

    with quick.client() as client:
        assert (
            client.post("/v1/plan", content=steady(), headers={"Content-Type": "application/json"}).status_code == 400
        )


def test_a_client_that_does_not_read_is_cut_off(quick: LiveServer) -> None:
    with connect(quick) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(OSError):
            for _ in range(200):  # many replies that nobody takes, until the server has had enough
                deaf.sendall(ask * 20)
                time.sleep(0.1)


FRAMING = b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (FRAMING + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
        (FRAMING + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
        (FRAMING + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + SMUGGLED, 400),
        (FRAMING + b"Content-Length: -1\r\n\r\n", 400),
        (FRAMING + b"Transfer-Encoding: gzip\r\n\r\n" + SMUGGLED, 400),
        (FRAMING + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000, 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400),
    ],
)
def test_odd_requests_get_one_reply_and_the_connection_is_closed(
    quick: LiveServer, request_: bytes, status: int
) -> None:
    with connect(quick) as odd:
        odd.sendall(request_)
        reply = everything(odd)
    assert reply.startswith(f"HTTP/1.1 {status} ".encode()), reply
    assert reply.count(b"HTTP/1.1 ") == 1 and b'{"error":' in reply and b"connection: close" in reply.lower()
    assert not any("Traceback" in str(entry) or "traceback" in entry for entry in quick.log)


def test_the_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    assert most_connections(4000, 65536) == 4000 and not caplog.records
    assert most_connections(4000, 1024) == 832 and len(caplog.records) == 1
    assert most_connections(4000, 100) == 8


def test_when_nobody_can_be_cut_off_the_newest_is_refused(tmp_path: Path) -> None:
    """Streams that the server feeds wait for nobody."""
    with live(tmp_path / "data", connections={"most": 8}, max_queued=100) as server:
        with server.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200)
            job = client.post("/v1/videos", json={**T2VA, "prompt": "slow 30"}).json()["id"]
        ask = f"GET /v1/videos/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with ExitStack() as stack:
            for _ in range(8):
                stream = stack.enter_context(connect(server))
                stream.sendall(ask)
                assert stream.recv(12) == b"HTTP/1.1 200"
            late = stack.enter_context(connect(server))
            reply = everything(late)
            assert reply.startswith(b"HTTP/1.1 503 ") and b"too many connections" in reply


def test_event_streams_of_one_key_are_bounded(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    ann, bob = ({"Authorization": f"Bearer {add_key(keys, name)}"} for name in ("ann", "bob"))
    with live(tmp_path / "data", keys=str(keys), connections={"streams": 2}) as server, server.client() as client:
        lines = []
        with ExitStack() as stack:
            for _ in range(2):
                stream = stack.enter_context(client.stream("GET", "/v1/videos/events", headers=ann))
                lines.append(stream.iter_lines())  # dropping it would close the stream
                assert next(lines[-1]) == ": still here"
            late = client.get("/v1/videos/events", headers=ann)
            assert late.status_code == 429 and late.json()["error"]["code"] == "too_many_streams"
            assert late.headers["retry-after"]
            with client.stream("GET", "/v1/videos/events", headers=bob) as other:
                assert other.status_code == 200

        def opens() -> bool:
            with client.stream("GET", "/v1/videos/events", headers=ann) as stream:
                return stream.status_code == 200

        wait_for(opens)  # those that were closed are not counted any more
