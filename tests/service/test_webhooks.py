import base64
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.folder import DataFolder
from h3serve.service.job import Job, Outcome
from h3serve.service.metrics import Metrics
from h3serve.service.moves import State
from h3serve.service.store import JobStore
from h3serve.service.webhooks import WebhookSender, event_body, read_secret, sign
from tests.service.make import put, take

SECRET = b"0123456789abcdef0123456789abcdef"


class Receiver:
    """A local web server that answers with `statuses`, one after another."""

    def __init__(self, *statuses: int) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        left = list(statuses)
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(left.pop(0) if left else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}/hook?a=1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def sender(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookSender]:
    monkeypatch.setattr("h3serve.service.webhooks._LOOK_S", 0.01)
    monkeypatch.setattr("h3serve.service.webhooks._PAUSES_S", (0.01, 0.01))
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
    assert [owed.id for owed in again.owed_webhooks(time.time())] == [job.id]
    again.close()


def test_private_addresses_are_refused(store: JobStore) -> None:
    receiver = Receiver()
    sender = WebhookSender(store, SECRET, Metrics())
    job = ended(store, receiver.url)
    sender.start()
    deadline = time.monotonic() + 10
    while (row := store.get(job.id)) and row.webhook_tries == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    sender.stop.set()
    sender.join()
    assert receiver.got == [] and row is not None and row.webhook_due_at is not None


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
