"""How many workers there are, over HTTP and from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h3serve.cli.main import run
from h3serve.service.folder import DataFolder
from h3serve.service.keys import Caller, KeyRing, hash_key
from h3serve.service.store import JobStore
from tests.service.client import client_of, context_of, live, wait_for


def staying(client: Any) -> Callable[[], list[str]]:
    return lambda: [w["state"] for w in client.get("/v1/admin/workers").json()["data"] if not w["leaving"]]


def test_the_command_changes_a_running_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(tmp_path / "data") as server, server.client() as client:
        states = staying(client)
        wait_for(lambda: states() == ["idle"])
        url = f"http://127.0.0.1:{server.port}/"
        assert run(["scale", "3", "--url", url]) == 0
        assert capsys.readouterr().out.strip().endswith("2 loading")
        wait_for(lambda: states() == ["idle"] * 3)
        assert client.get("/ready").json()["workers"]["idle"] == 3
        assert run(["scale", "1", "--url", url]) == 0
        assert "2 leaving" in capsys.readouterr().out
        wait_for(lambda: sum(client.get("/ready").json()["workers"].values()) == 1)
        assert client.get("/health").status_code == 200
        assert run(["scale", "0", "--url", url]) != 0
        assert "1 to 64" in capsys.readouterr().err
    assert run(["scale", "2", "--url", url]) != 0
    assert "cannot be reached" in capsys.readouterr().err


def test_only_an_admin_may(store: JobStore, folder: DataFolder) -> None:
    ring = KeyRing((Caller("ann", hash_key("a")), Caller("bob", hash_key("b"), is_admin=True)))
    client = client_of(context_of(store, folder, ring))
    for key, body, status in (
        ("x", {"count": 1}, 401),
        ("a", {"count": 1}, 403),
        ("b", {"count": 1}, 200),
        ("b", {"count": 1, "speed": 2}, 400),
        ("b", {"count": "many"}, 400),
        ("b", {"count": 0}, 400),
    ):
        reply = client.put("/v1/admin/workers", json=body, headers={"Authorization": f"Bearer {key}"})
        assert reply.status_code == status, reply.text
    assert client.get("/v1/admin/workers", headers={"Authorization": "Bearer a"}).status_code == 200


def test_a_draining_server_is_not_scaled(store: JobStore, folder: DataFolder) -> None:
    context = context_of(store, folder, KeyRing(anybody=Caller(is_admin=True)))
    context.draining.set()
    assert client_of(context).put("/v1/admin/workers", json={"count": 1}).status_code == 503
