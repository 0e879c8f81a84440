"""Who may update weights, from where, and what a wrong body is told."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from h3serve.core.errors import H3Error
from h3serve.service.http.api_keys import Caller, KeyRing, hash_key
from h3serve.service.http.server import serve
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Json
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import ServiceSettings
from h3serve.service.workers.messages import UpdateWeights
from tests.service.client import client_of, context_of

KEYS = KeyRing((Caller("ann", hash_key("ann-key")), Caller("ops", hash_key("ops-key"), is_admin=True)))
OPS = {"Authorization": "Bearer ops-key"}
URL = "/v1/admin/weights"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "weights"
    (root / "new").mkdir(parents=True)
    (root / "some.safetensors").write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    return root


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[UpdateWeights]:
    """What the workers would get."""
    updates: list[UpdateWeights] = []

    def make(self: object, update: UpdateWeights) -> Json:
        updates.append(update)
        return {"id": update.update_id, "workers": []}

    monkeypatch.setattr("h3serve.service.workers.worker_updates.WeightUpdates.make", make)
    return updates


@pytest.fixture
def http(store: JobStore, folder: DataFolder, root: Path, made: list[UpdateWeights]) -> TestClient:
    return client_of(context_of(store, folder, KEYS, weights=root))


def test_an_admin_names_what_lies_in_the_folder(http: TestClient, root: Path, made: list[UpdateWeights]) -> None:
    body = {"source": "new", "tensors": "some.safetensors", "partition": "ref2va"}
    reply = http.post(URL, json=body, headers=OPS)
    assert reply.status_code == 200 and reply.json()["object"] == "weight_update"
    assert reply.json()["source"] == "new" and str(root) not in reply.text
    assert (made[0].source, made[0].tensors) == (str(root / "new"), str(root / "some.safetensors"))
    assert made[0].partition == "ref2va" and not made[0].only_check
    listed = http.get(URL, headers=OPS).json()
    assert listed == {"object": "list", "data": [], "in_progress": False}


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"Authorization": "Bearer ann-key"}, 403)])
def test_others_may_not(http: TestClient, made: list[UpdateWeights], headers: dict[str, str], status: int) -> None:
    assert http.post(URL, json={"source": "new"}, headers=headers).status_code == status
    assert http.get(URL, headers=headers).status_code == status
    assert not made


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "source"),
        ({"source": 7}, "source"),
        ({"source": "new", "more": 1}, "more"),
        ({"source": "new", "partition": "both"}, "partition"),
        ({"source": "new"}, "partition"),
        ({"source": "nothing", "partition": "fl2va"}, "source"),
        ({"source": "..", "partition": "fl2va"}, "source"),
        ({"source": "/etc", "partition": "fl2va"}, "source"),
        ({"source": "link", "partition": "fl2va"}, "source"),
        ({"source": "a\0b", "partition": "fl2va"}, "source"),
        ({"source": "x" * 5000, "partition": "fl2va"}, "source"),
        ({"source": "some.safetensors", "partition": "fl2va"}, "source"),
        ({"source": "new", "tensors": "new", "partition": "fl2va"}, "tensors"),
        ({"source": "new", "tensors": "../data", "partition": "fl2va"}, "tensors"),
    ],
)
def test_a_wrong_body_is_told_its_field(http: TestClient, made: list[UpdateWeights], body: Json, param: str) -> None:
    reply = http.post(URL, json=body, headers=OPS)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
    assert not made


def test_without_a_folder_there_are_no_updates(store: JobStore, folder: DataFolder) -> None:
    reply = client_of(context_of(store, folder, KEYS)).post(URL, json={"source": "new"}, headers=OPS)
    assert reply.status_code == 403 and "--weights-folder" in reply.json()["error"]["message"]


def test_a_folder_without_an_admin_key_does_not_start(tmp_path: Path, no_logs: None) -> None:
    settings = ServiceSettings("fake", data=tmp_path / "data", port=0, weights=tmp_path)
    with pytest.raises(H3Error, match="--admin"):
        serve(settings)
    assert not (tmp_path / "data").exists()


def test_the_document_lists_it(http: TestClient) -> None:
    document: Any = http.get("/openapi.json").json()
    assert set(document["paths"][URL]) == {"get", "post"}
    schema = document["components"]["schemas"]["WeightUpdate"]
    assert set(schema["properties"]) == {"source", "tensors", "partition"} and schema["required"] == ["source"]
    assert {"403", "409", "422"} <= set(document["paths"][URL]["post"]["responses"])


ADAPTERS = "/v1/admin/adapters"


@pytest.fixture
def with_adapters(store: JobStore, folder: DataFolder, root: Path, tmp_path: Path) -> TestClient:
    (tmp_path / "adapters").mkdir()
    (root / "rain.safetensors").write_bytes(b"rain")
    return client_of(context_of(store, folder, KEYS, weights=root, adapter_folder=tmp_path / "adapters"))


def test_an_admin_adds_an_adapter(with_adapters: TestClient, tmp_path: Path) -> None:
    """It is there for everybody's next request; a name is given once."""
    body = {"source": "rain.safetensors", "name": "rain on tin"}
    added = with_adapters.post(ADAPTERS, json=body, headers=OPS)
    assert added.status_code == 200
    assert added.json()["sha256"] == hashlib.sha256(b"rain").hexdigest()
    listed = with_adapters.get("/v1/adapters", headers={"Authorization": "Bearer ann-key"}).json()["data"]
    assert [adapter["id"] for adapter in listed] == ["rain on tin"]
    assert (tmp_path / "adapters" / "rain on tin.safetensors").read_bytes() == b"rain"
    again = with_adapters.post(ADAPTERS, json=body, headers=OPS)
    assert again.status_code == 409 and again.json()["error"]["code"] == "name_taken"


@pytest.mark.parametrize(
    "body",
    [
        {"source": "new", "name": "a"},
        {"source": "gone.safetensors", "name": "a"},
        {"source": "../adapters", "name": "a"},
        {"source": "rain.safetensors", "name": "../a"},
        {"source": "rain.safetensors", "name": ".a"},
        {"source": "rain.safetensors", "name": "a/b"},
        {"source": "rain.safetensors"},
    ],
)
def test_what_is_no_file_or_no_name_is_refused(with_adapters: TestClient, body: Json, tmp_path: Path) -> None:
    refused = with_adapters.post(ADAPTERS, json=body, headers=OPS)
    assert refused.status_code == 400 and refused.json()["error"]["param"] in ("source", "name")
    assert list((tmp_path / "adapters").iterdir()) == []


def test_others_may_not_add_adapters(with_adapters: TestClient, http: TestClient) -> None:
    body = {"source": "some.safetensors", "name": "a"}
    assert with_adapters.post(ADAPTERS, json=body, headers={"Authorization": "Bearer ann-key"}).status_code == 403
    assert "no adapter folder" in http.post(ADAPTERS, json=body, headers=OPS).json()["error"]["message"]
