"""Recorded arrays of whole requests (`scripts/oracle`): their tests are skipped unless the options name the folders."""

import json
from pathlib import Path

import pytest

from tests.parity.recorded import CASES

FIXTURES = {"oracle", "oracle_checkpoint"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test that asks for a recording, so that `-m oracle` runs those alone."""
    for item in items:
        if FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("oracle")


def _folder(config: pytest.Config, option: str) -> Path:
    folder = config.getoption(option)
    if folder is None:
        pytest.skip(f"needs {option} DIR")
    return Path(folder)


@pytest.fixture(scope="session")
def oracle(request: pytest.FixtureRequest) -> Path:
    folder = _folder(request.config, "--oracle")
    recorded = json.loads((folder / "index.json").read_text())["cases"]
    assert set(CASES) <= set(recorded), "a recording that lacks cases would let their tests pass unrun"
    return folder


@pytest.fixture(scope="session")
def oracle_checkpoint(request: pytest.FixtureRequest) -> Path:
    return _folder(request.config, "--oracle-checkpoint")
