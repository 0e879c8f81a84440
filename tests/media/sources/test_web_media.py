"""Fetching from the web: the size, the time and the address are under our control, not the server's."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from h3serve.core.errors import MediaError
from h3serve.media.sources.media_file import IngestLimits, SourcePolicy
from h3serve.media.sources.open_source import open_source
from h3serve.media.sources.web_media import shown_url

CONTENT = b"picture" * 1000


class Server(BaseHTTPRequestHandler):
    """Answers by path; remembers the Host headers it was sent and where from."""

    hosts: ClassVar[list[str]] = []
    clients: ClassVar[list[tuple[str, int]]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        self.clients.append(self.client_address)
        route = self.path.split("?")[0].strip("/").split("/")
        getattr(self, f"get_{route[0]}", self.get_missing)(*route[1:])

    def get_ok(self) -> None:
        self.answer(200, {"Content-Length": str(len(CONTENT))}, CONTENT)

    def get_chunked(self) -> None:
        self.answer(200, {}, CONTENT)  # no length: the end of the connection is the end

    def get_endless(self) -> None:
        self.answer(200, {}, b"")
        try:
            while True:
                self.wfile.write(bytes(100_000))
        except OSError:
            pass

    def get_drip(self) -> None:
        self.answer(200, {}, b"")
        try:
            while True:
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass

    def get_silent(self) -> None:
        time.sleep(1.5)

    def get_short(self) -> None:
        self.answer(200, {"Content-Length": str(len(CONTENT) + 5)}, CONTENT)

    def get_gzip(self) -> None:
        self.answer(200, {"Content-Encoding": "gzip"}, b"\x1f\x8b")

    def get_empty(self) -> None:
        self.answer(200, {"Content-Length": "0"}, b"")

    def get_to(self, *where: str) -> None:
        self.answer(302, {"Location": "/".join(where).replace("_", "//")}, b"")

    def get_loop(self) -> None:
        self.answer(302, {"Location": "/loop"}, b"")

    def get_missing(self, *_: str) -> None:
        self.answer(404, {}, b"no")

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture
def policy(tmp_path: Path) -> SourcePolicy:
    return SourcePolicy(
        private_addresses=True,
        connect_seconds=0.7,
        total_seconds=1.0,
        temp_folder=tmp_path,
        limits=IngestLimits(max_file_bytes=50_000),
    )


def refused(url: str, policy: SourcePolicy, match: str | None) -> str:
    with pytest.raises(MediaError, match=match) as caught, open_source(url, policy):
        pytest.fail("opened")
    assert policy.temp_folder is None or list(policy.temp_folder.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize("path", ["ok", "chunked", "to/ok", "to/chunked", "ok?token=secret#part"])
def test_fetches(server: str, policy: SourcePolicy, path: str) -> None:
    path = path.replace("to/", "to//")  # Location: /ok
    with open_source(f"http://{server}/{path}", policy) as file:
        assert file.path.read_bytes() == CONTENT
        assert "secret" not in file.name
    assert policy.temp_folder is not None
    assert list(policy.temp_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("endless", "more than 50000 bytes"),
        ("drip", "did not end within 1 s"),
        ("silent", "within 1 s|ReadTimeout"),
        ("short", "cannot be fetched"),
        ("gzip", "compressing"),
        ("empty", "no content"),
        ("none", "answered 404"),
        ("loop", "redirected more than 5 times"),
        ("to/file:_/etc/passwd", "not http"),
        ("to/s3:_bucket/x", "not http"),
        ("to/http:_user:word@host/x", "user name or password"),
    ],
)
def test_bad_servers(server: str, policy: SourcePolicy, path: str, match: str) -> None:
    """B17: the cap holds while bytes arrive; whatever the server does ends soon and leaves nothing."""
    begun = time.monotonic()
    refused(f"http://{server}/{path}", policy, match)
    assert time.monotonic() - begun < 5


def test_length_is_believed_when_it_is_too_much(server: str, policy: SourcePolicy) -> None:
    small = SourcePolicy(private_addresses=True, limits=IngestLimits(max_file_bytes=10))
    refused(f"http://{server}/ok", small, "more than 10 bytes")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0"])
def test_local_addresses_are_refused(server: str, host: str) -> None:
    """However the address is written."""
    port = server.rpartition(":")[2]
    refused(f"http://{host}:{port}/ok", SourcePolicy(), "private or local address|is this machine itself|is not known")


def answers(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> list[str]:
    """Make names resolve to the given answers, one after the other; returns the list of names asked for."""
    real, asked = socket.getaddrinfo, []

    def resolve(host: str, port: int, *args: object, **kwargs: object) -> list:
        if host not in names:
            return real(host, port, *args, **kwargs)
        asked.append(host)
        left = names[host]
        return real(left.pop(0) if len(left) > 1 else left[0], port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_connects_to_the_address_that_was_checked(
    server: str, policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that changes its answer after the check gains nothing; the server still sees its own name."""
    port = server.rpartition(":")[2]
    asked = answers(monkeypatch, {"media.example": ["127.0.0.1", "192.0.2.1"]})
    Server.hosts.clear()
    with open_source(f"http://media.example:{port}/ok", policy) as file:
        assert file.path.read_bytes() == CONTENT
    assert (asked, Server.hosts) == (["media.example"], [f"media.example:{port}"])


def test_redirects_are_checked_too(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public server must not send us to a private one."""
    port = server.rpartition(":")[2]
    answers(monkeypatch, {"public.example": ["127.0.0.1"], "inner.example": ["10.0.0.7"]})
    monkeypatch.setattr("h3serve.media.sources.ssrf_rules.is_public", lambda address: not address.startswith("10."))
    refused(f"http://public.example:{port}/to/http:_inner.example/ok", SourcePolicy(), "inner.example is at a private")


def test_one_private_answer_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    refused("http://mixed.example/x", SourcePolicy(), "private or local")


def test_an_international_name_is_asked_for_in_the_form_that_dns_knows(
    server: str, policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 5891's own letter: IDNA 2003, as Python's look-up has it, would ask for another host, fass.example."""
    port = server.rpartition(":")[2]
    asked = answers(monkeypatch, {"xn--fa-hia.example": ["127.0.0.1"]})
    Server.hosts.clear()
    with open_source(f"http://faß.example:{port}/ok", policy) as file:
        assert file.path.read_bytes() == CONTENT
    assert (asked, Server.hosts) == (["xn--fa-hia.example"], [f"xn--fa-hia.example:{port}"])


def test_another_address_is_tried_when_the_first_takes_no_connection(
    server: str, policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with an IPv6 address, asked for from a machine that has IPv4 only."""
    port = int(server.rpartition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_source(f"http://two.example:{port}/ok", policy) as file:
        assert file.path.read_bytes() == CONTENT


def test_a_look_up_that_hangs_ends_with_the_deadline(policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: let_go.wait(20))
    begun = time.monotonic()
    refused("http://slow.example/x", policy, "did not end within 1 s")
    assert time.monotonic() - begun < 5
    let_go.set()


def test_names_at_one_address_share_no_connection(
    server: str, policy: SourcePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was agreed with one name over TLS would carry what is meant for the other."""
    port = server.rpartition(":")[2]
    answers(monkeypatch, {"one.example": ["127.0.0.1"], "two.example": ["127.0.0.1"]})
    monkeypatch.setattr(Server, "protocol_version", "HTTP/1.1")  # keeps connections open
    monkeypatch.setattr(Server, "get_to", lambda self, *_: self.answer(302, moved, b""))
    moved = {"Location": f"http://two.example:{port}/ok", "Content-Length": "0"}
    Server.clients.clear()
    with open_source(f"http://one.example:{port}/to", policy) as file:
        assert file.path.read_bytes() == CONTENT
    assert len(set(Server.clients)) == len(Server.clients) == 2


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///x",
        "http://[",
        "http://a b/",
        "https://x:99999/",
        "http://1.1.1.1:65536/",
        "http://x:0/",
        "http://x\n/",
        "http://1.1.1.1/\ud800",
    ],
)
def test_malformed_urls(url: str) -> None:
    refused(url, SourcePolicy(), None)


def test_unknown_host_and_closed_port(policy: SourcePolicy) -> None:
    refused("http://no-such-host.invalid/x", policy, "is not known|within 1 s")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    refused(f"http://127.0.0.1:{port}/x", policy, "ConnectError")


def test_secrets_are_not_shown() -> None:
    assert shown_url("https://me:word@a.example:8443/b/c.png?sig=1#x") == "https://a.example:8443/b/c.png"
