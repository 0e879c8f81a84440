import socket
from pathlib import Path
from typing import Any

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.http.api_keys import KeyRing
from h3serve.service.http.health import health
from h3serve.service.http.server import Server, bind, serve
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import ServiceSettings


def test_replies_do_not_wait_for_delayed_acknowledgements() -> None:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        port = listener.getsockname()[1]
        with pytest.raises(H3Error, match="cannot listen"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "203.0.113.1"}, "cannot listen on 203.0.113.1"),
        ({"database": "postgresql+psycopg://127.0.0.1:9/x"}, "job database cannot be opened"),
        ({"database": "sqlite:///elsewhere.sqlite"}, "always in the data folder"),
        ({"keys": Path("/no/such/keys.json")}, "key file"),
        ({"webhook_secret": Path("/no/such/secret")}, "webhook secret"),
    ],
)
@pytest.mark.usefixtures("no_logs")
def test_a_failing_start_says_why_and_leaves_nothing(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(H3Error, match=words):
        serve(ServiceSettings("demo-random", data=tmp_path / "data", port=0, **settings), command=["false"])
    assert list(tmp_path.iterdir()) == []


def test_health_sees_a_thread_that_ended(folder: DataFolder, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tidying and webhooks are watched like the workers' threads: a server without them is not well."""
    server = Server(ServiceSettings("fake"), store, folder, KeyRing(), ["false"])
    monkeypatch.setattr(server.supervisor, "start", lambda: None)
    server.supervisor.slots.clear()
    context, seen = server.context, []

    def run(_: object) -> None:
        seen.append(health(context).status_code)
        for helper in context.helpers:
            helper.stop.set()  # type: ignore[attr-defined]
            helper.join()
            seen.append(health(context).status_code)

    monkeypatch.setattr(server, "run", run)
    with bind("127.0.0.1", 0) as listener:
        server.live(listener, bytes(24))
    assert [thread.name for thread in context.helpers] == ["janitor", "webhooks"]
    assert seen == [200, 503, 503]
