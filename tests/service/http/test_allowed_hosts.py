"""DNS rebinding: a name that is not this server's reaches no route."""

import pytest

from h3serve.cli.main import run
from h3serve.service.http.allowed_hosts import hosts_of
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import client_of, context_of

NAMES = [
    *("localhost", "LOCALHOST:8000", "a.localhost"),
    *("127.0.0.1", "127.8.9.1:80", "[::1]:8000", "[::ffff:127.0.0.1]"),
]
ODD = [
    *("", "evil.com", "evil.com:80", "localhost.evil.com"),
    *("evil.com#localhost", "a@localhost", "localhost/x", "[::1"),
]


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "192.168.1.5", "gpubox"])
def test_loopback_names_pass_and_other_names_never(bound: str) -> None:
    hosts = hosts_of(bound, ["Video.Example"])
    assert all(map(hosts.allows, (*NAMES, "video.example", "VIDEO.example:443")))
    assert not any(map(hosts.allows, (*ODD, "other.video.example", "localhost:999999")))


def test_addresses_pass_where_they_are_listened_on() -> None:
    for bound, allowed, refused in (
        ("127.0.0.1", (), ("192.168.1.5", "[2001:db8::1]", "0.0.0.0")),
        ("192.168.1.5", ("192.168.1.5:8000",), ("192.168.1.6",)),
        ("0.0.0.0", ("192.168.1.5:8000", "[2001:db8::1]"), ("gpubox",)),
        ("::", ("192.168.1.5:8000", "[2001:db8::1]:8000"), ("gpubox",)),
        ("gpubox", ("gpubox:8000", "GPUBOX"), ("192.168.1.5", "gpubox.evil.com")),
    ):
        hosts = hosts_of(bound, [])
        assert all(map(hosts.allows, allowed)) and not any(map(hosts.allows, refused)), bound


def test_every_route_is_behind_it(store: JobStore, folder: DataFolder) -> None:
    client = client_of(context_of(store, folder, admin_without_key=True))
    described = client.get("/openapi.json", headers={"Host": "localhost"}).json()["paths"]
    routes = [(method, path) for path, methods in described.items() for method in methods]
    assert len(routes) >= 15
    for method, path in [*routes, *(("GET", p) for p in ("/", "/docs", "/web/page.js", "/openapi.json", "/no/such"))]:
        # As a page does that rebound its name: both headers carry it.
        reply = client.request(method, path, headers={"Host": "evil.com", "Origin": "http://evil.com"})
        assert reply.status_code == 421, (method, path, reply.status_code)
    assert client.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize("name", ["http://video.example", "video.example:80", "", "a b", "*"])
def test_a_wrong_name_on_the_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--allowed-host", name]) == 2
    assert "--allowed-host" in capsys.readouterr().err


def test_admins_without_key_exclude_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--keys", "k.json", "--admin-without-key"]) == 2
    assert "--admin-without-key" in capsys.readouterr().err
