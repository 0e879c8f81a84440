import asyncio
import base64
import http.server
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from h3serve.core.errors import H3Error
from h3serve.service.http.webhooks import WebhookSender, event_body, read_secret, sign
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from tests.service.client import wait_for
from tests.service.make import put, take

SECRET = b"0123456789abcdef0123456789abcdef"


class Receiver:
    """A local web server that answers with `statuses`, one after another."""

    def __init__(self, *statuses: int, location: str = "", reply: Callable[[Any], None] | None = None) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        left = list(statuses)
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                if reply is not None:
                    reply(self.wfile)
                    return
                self.send_response(left.pop(0) if left else 200)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}/hook?a=1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def sender(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookSender]:
    monkeypatch.setattr("h3serve.service.http.webhooks._LOOK_S", 0.01)
    monkeypatch.setattr("h3serve.service.http.webhooks._PAUSES_S", (0.01, 0.01))
    sender = WebhookSender(store, SECRET, Metrics(), private=True)
    sender.start()
    yield sender
    sender.stop.set()
    sender.join()


def ended(store: JobStore, url: str, outcome: Outcome | None = None) -> Job:
    put(store, webhook_url=url)
    job = take(store)
    after = store.finish(job.id, outcome or Outcome(State.COMPLETED))
    assert after is not None
    return after


def settle(store: JobStore, job: Job, tries: int) -> Job:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        row = store.get(job.id)
        assert row is not None
        if row.webhook_tries == tries and row.webhook_due_at is None:
            return row
        time.sleep(0.01)
    raise AssertionError(store.get(job.id))


def test_delivered_until_accepted_and_signed_as_openai_clients_check_it(store: JobStore, sender: WebhookSender) -> None:
    openai = pytest.importorskip("openai")
    receiver = Receiver(500, 302)
    job = ended(store, receiver.url)
    settle(store, job, 3)
    assert len(receiver.got) == 3 and len({h["webhook-id"] for h, _ in receiver.got}) == 1
    headers, body = receiver.got[-1]
    assert headers["host"].startswith("localhost:")
    client = openai.OpenAI(api_key="x", webhook_secret="whsec_" + base64.b64encode(SECRET).decode())
    event = client.webhooks.unwrap(body, headers)
    assert event.type == "video.completed" and event.data.id == job.id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers)


def test_it_gives_up_in_the_end(store: JobStore, sender: WebhookSender) -> None:
    job = ended(store, "http://localhost:9/closed", Outcome(State.FAILED, "x", "y"))
    assert settle(store, job, 3).state is State.FAILED


def test_what_is_owed_survives_a_restart(folder: DataFolder, store: JobStore) -> None:
    job = ended(store, "http://localhost/")
    again = JobStore(folder.default_url)
    assert [owed.id for owed in again.owed_webhooks(time.time(), 9)] == [job.id]
    again.close()


@contextmanager
def sending(store: JobStore, *, private: bool) -> Iterator[WebhookSender]:
    sender = WebhookSender(store, SECRET, Metrics(), private=private)
    sender.start()
    try:
        yield sender
    finally:
        sender.stop.set()
        sender.join()


def first_try(store: JobStore, job: Job) -> Job:
    """The job once a try was made and counted."""

    def tried() -> Job | None:
        row = store.get(job.id)
        return row if row is not None and row.webhook_tries else None

    wait_for(lambda: tried() is not None)
    row = tried()
    assert row is not None
    return row


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Every name has these addresses; returns the names that were asked for."""
    asked = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


@pytest.mark.parametrize(
    "addresses",
    # The receiver listens at 127.0.0.1 alone: with the rule taken out it would be told.
    [["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"]],
    ids=["private", "public and private", "private and public"],
)
def test_private_addresses_are_refused(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, addresses: list[str]
) -> None:
    asked = resolve_to(monkeypatch, *addresses)
    receiver = Receiver()
    job = ended(store, receiver.url.replace("localhost", "hooks.example"))
    with sending(store, private=False):
        assert first_try(store, job).webhook_due_at is not None
        wait_for(lambda: "webhook not delivered" in caplog.text)
    assert receiver.got == [] and asked == ["hooks.example"]
    assert "hooks.example is at a private or local address" in caplog.records[-1].__dict__["cause"]


@pytest.mark.parametrize(
    "address",
    # One of each kind in IANA's registries; all of them are tried in tests/media/sources/test_ssrf_rules.py.
    [
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "2001::1",
    ],
)
def test_webhooks_know_every_kind_of_private_address(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    resolve_to(monkeypatch, address)
    sender = WebhookSender(store, SECRET, Metrics())
    problem = asyncio.run(sender._post(ended(store, "http://hooks.example/")))
    assert problem is not None and "private or local address" in problem


def test_redirects_are_not_followed(store: JobStore, sender: WebhookSender) -> None:
    """A receiver outside must not be able to send the server's own signature on to somebody else."""
    inner = Receiver()
    outer = Receiver(307, 307, 307, location=inner.url)
    settle(store, ended(store, outer.url), 3)
    assert len(outer.got) == 3 and inner.got == []


def test_an_international_host_is_delivered_to(
    store: JobStore, sender: WebhookSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolve_to(monkeypatch, "127.0.0.1")
    receiver = Receiver()
    settle(store, ended(store, receiver.url.replace("localhost", "bücher.example")), 1)
    # RFC 3492's encoding of the name.
    assert asked == ["xn--bcher-kva.example"] and receiver.got[0][0]["host"].startswith("xn--bcher-kva.example:")


def endless(out: Any) -> None:
    """A reply that never stops."""
    out.write(b"HTTP/1.1 200 OK\r\n\r\n")
    with suppress(OSError):
        while True:
            out.write(bytes(1 << 20))


def dripping(out: Any) -> None:
    """A reply whose head never ends, one byte at a time: no read ever times out."""
    out.write(b"HTTP/1.1 200 OK\r\nX: ")
    with suppress(OSError):
        for _ in range(600):
            out.write(b"x")
            time.sleep(0.05)


def test_of_an_endless_reply_only_the_status_is_read(store: JobStore, sender: WebhookSender) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settle(store, ended(store, Receiver(reply=endless).url), 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # KiB


def test_a_receiver_that_drips_delays_neither_others_nor_the_end(store: JobStore, sender: WebhookSender) -> None:
    slow, quick = Receiver(reply=dripping), Receiver()
    for _ in range(20):  # more than a key may have under way
        ended(store, slow.url)
    wait_for(lambda: len(slow.got) == 16)
    begun = time.monotonic()
    put(store, webhook_url=quick.url, owner="somebody else")
    job = store.finish(take(store).id, Outcome(State.COMPLETED))
    assert job is not None
    settle(store, job, 1)
    assert len(slow.got) == 16
    sender.stop.set()
    sender.join(5)
    assert not sender.is_alive() and time.monotonic() - begun < 5


def test_one_deadline_covers_the_whole_try(store: JobStore) -> None:
    sender = WebhookSender(store, SECRET, Metrics(), private=True)
    assert sender.bounds.total_seconds == 10
    sender.bounds = replace(sender.bounds, total_seconds=0.5)
    begun = time.monotonic()
    assert asyncio.run(sender._post(ended(store, Receiver(reply=dripping).url))) == "it did not end within 0.5 s"
    assert time.monotonic() - begun < 5


def test_no_error_ends_the_thread_unseen(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails, where the owed ones are looked up or in one delivery, is logged, and the rest goes on."""
    monkeypatch.setattr("h3serve.service.http.webhooks._LOOK_S", 0.01)
    monkeypatch.setattr("h3serve.service.http.webhooks._AFTER_ERROR_S", 0.01)
    look, left = store.owed_webhooks, [RuntimeError("the look-up broke")]

    def look_up(*args: Any, **more: Any) -> list[Job]:
        if left:
            raise left.pop()
        return look(*args, **more)

    def body(job: Job) -> bytes:
        if job.id == broken.id:
            raise KeyError("the delivery broke")
        return event_body(job)

    monkeypatch.setattr(store, "owed_webhooks", look_up)
    monkeypatch.setattr("h3serve.service.http.webhooks.event_body", body)
    receiver = Receiver()
    broken = ended(store, receiver.url)
    whole = ended(store, receiver.url)
    with sending(store, private=True) as sender:
        settle(store, whole, 1)
        wait_for(lambda: "the delivery broke" in caplog.text)
        assert sender.is_alive() and "the look-up broke" in caplog.text
    assert len(receiver.got) == 1


def test_a_store_that_takes_no_writes_causes_no_tries(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try that cannot be counted would be made again twice a second for ever."""
    monkeypatch.setattr("h3serve.service.http.webhooks._LOOK_S", 0.01)
    monkeypatch.setattr("h3serve.service.http.webhooks._AFTER_ERROR_S", 0.01)
    tried: list[str] = []

    def refuse(job_id: str, again_at: float) -> None:
        tried.append(job_id)
        raise OperationalError("update", {}, Exception("disk full"))

    monkeypatch.setattr(store, "count_webhook", refuse)
    receiver = Receiver()
    ended(store, receiver.url)
    with sending(store, private=True):
        wait_for(lambda: len(tried) > 3)
    assert receiver.got == []


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
def test_one_event_per_end(store: JobStore, state: State) -> None:
    assert f'"video.{state}"'.encode() in event_body(ended(store, "http://x/", Outcome(state)))


def test_the_signature_is_that_of_the_standards_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # The published example of Standard Webhooks.
    monkeypatch.setattr(time, "time", lambda: 1614265330.0)
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("whsec_" + base64.b64encode(SECRET).decode() + "\n")
    assert read_secret(path) == SECRET
    for text in ("", "whsec_AAAA", "???"):
        path.write_text(text)
        with pytest.raises(H3Error, match="webhook secret"):
            read_secret(path)
