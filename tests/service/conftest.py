"""Shared pieces of the service tests."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from tests.service.client import LiveServer, live, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    folder.open()
    yield folder
    folder.close()


@pytest.fixture
def store(folder: DataFolder) -> Iterator[JobStore]:
    store = JobStore(folder.default_url)
    yield store
    store.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A whole server as a process, ready, for tests that leave it as it was."""
    adapters = tmp_path_factory.mktemp("adapters")
    for name in ("cel shading", "rain"):  # fake workers do not open them
        (adapters / f"{name}.safetensors").write_text(name)
    with live(tmp_path_factory.mktemp("live") / "data", adapter_folder=str(adapters)) as server:
        with server.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200)
        yield server


@pytest.fixture(scope="package")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in this process leaves the logging of the tests alone."""
    monkeypatch.setattr("h3serve.service.http.server.start_logs", lambda: None)
