"""How many workers there are, over HTTP and from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from h3serve.cli.main import run
from h3serve.core.errors import CapacityError
from h3serve.service.http.api_keys import Caller, KeyRing, hash_key
from h3serve.service.http.app import make_app
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.workers.worker_room import check_memory
from tests.service.client import client_of, context_of, live, wait_for


def staying(client: Any) -> Callable[[], list[str]]:
    return lambda: [w["state"] for w in client.get("/v1/admin/workers").json()["data"] if not w["leaving"]]


def test_the_command_changes_a_running_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(tmp_path / "data", admin_without_key=True) as server, server.client() as client:
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
    for key, status in (("a", 403), ("b", 200)):
        assert client.get("/v1/admin/workers", headers={"Authorization": f"Bearer {key}"}).status_code == status


ADMIN = KeyRing((Caller("ops", hash_key("o"), is_admin=True),))
AS_ADMIN = {"Authorization": "Bearer o"}


def test_a_draining_server_is_not_scaled(store: JobStore, folder: DataFolder) -> None:
    context = context_of(store, folder, ADMIN)
    context.draining.set()
    assert client_of(context).put("/v1/admin/workers", json={"count": 1}, headers=AS_ADMIN).status_code == 503


@pytest.mark.parametrize("path", ["/v1/admin/workers", "/v1/admin/weights"])
@pytest.mark.parametrize(
    ("without_key", "client", "headers", "is_admin"),
    [
        (False, "127.0.0.1", {}, False),
        (True, "127.0.0.1", {}, True),
        (True, "::1", {}, True),
        (True, "::ffff:127.0.0.1", {}, True),
        (True, "192.168.1.7", {}, False),
        (True, "127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, False),
        (True, "127.0.0.1", {"Forwarded": "for=1.2.3.4"}, False),
        (True, "127.0.0.1", {"Authorization": "Bearer x"}, True),
    ],
)
def test_without_keys_only_this_machine_and_only_when_told(
    store: JobStore, folder: DataFolder, path: str, without_key: bool, client: str, headers: Any, is_admin: bool
) -> None:
    context = context_of(store, folder, admin_without_key=without_key, weights=folder.root)
    http = TestClient(make_app(context), base_url="http://localhost", client=(client, 5))
    assert http.get(path, headers=headers).status_code == (200 if is_admin else 403)
    if not is_admin:
        reply = http.put("/v1/admin/workers", json={"count": 1}, headers=headers)
        assert reply.status_code == 403 and "--admin" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("started", "body", "param"),
    [
        (("cpu",), {"count": 1, "device": "cuda:9"}, "device"),
        (("cpu",), {"count": 1, "device": "warp"}, "device"),
        (("cpu",), {"count": 1, "device": ""}, "device"),
        (("cpu",), {"count": 2, "device": "cuda:2"}, "device"),
        (("cuda:0",), {"count": 2}, "count"),
        (("cuda:0", "cuda:0"), {"count": 3}, "count"),
        (("cuda", "cuda:1"), {"count": 3, "device": "cuda:0"}, "count"),
    ],
)
def test_devices_and_counts_that_cannot_be(
    store: JobStore, folder: DataFolder, monkeypatch: pytest.MonkeyPatch, started: Any, body: Any, param: str
) -> None:
    monkeypatch.setattr("h3serve.service.workers.worker_room.gpu_count", lambda: 2)
    context = context_of(store, folder, ADMIN, devices=started)
    reply = client_of(context).put("/v1/admin/workers", json=body, headers=AS_ADMIN)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
    assert len(context.supervisor.slots) == len(started)


def test_memory_bounds_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of 6 GiB on 64 GiB, of which 30 are free and 6.4 stay so: 23.6 GiB are three more, not four."""
    gib = 2**30
    monkeypatch.setattr("h3serve.service.workers.worker_room.host_memory", lambda: (64 * gib, 30 * gib))
    monkeypatch.setattr("h3serve.service.workers.worker_room._worker_bytes", lambda: [6 * gib])
    check_memory(3, loaded=1)
    with pytest.raises(CapacityError, match="4 more workers need 24.00 GiB .* each 6.00 GiB .* 23.60 GiB are usable"):
        check_memory(4, loaded=1)
    # Another one that has loaded 1 GiB of its 6 will take 5 more: 18.6 GiB are left.
    monkeypatch.setattr("h3serve.service.workers.worker_room._worker_bytes", lambda: [6 * gib, gib])
    check_memory(3, loaded=1)
    with pytest.raises(CapacityError, match=r"18\.60 GiB"):
        check_memory(4, loaded=1)
    with pytest.raises(Refusal, match="no worker has loaded yet"):
        check_memory(1, loaded=0)


def test_as_many_as_at_the_start_come_back_whatever_has_loaded(store: JobStore, folder: DataFolder) -> None:
    supervisor = context_of(store, folder, ADMIN, devices=("cpu", "cpu")).supervisor
    supervisor._check_room([], 2, None)
    with pytest.raises(Refusal, match="no worker has loaded yet"):
        supervisor._check_room([], 3, None)
