"""Shared pieces of the service tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from h3serve.service.folder import DataFolder
from h3serve.service.store import JobStore


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
