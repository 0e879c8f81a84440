"""Recorded arrays of whole requests: their tests are skipped unless the options name the folders."""

from pathlib import Path

import pytest


def _folder(config: pytest.Config, option: str) -> Path:
    folder = config.getoption(option)
    if folder is None:
        pytest.skip(f"needs {option} DIR")
    return Path(folder)


@pytest.fixture(scope="session")
def oracle(request: pytest.FixtureRequest) -> Path:
    return _folder(request.config, "--oracle")


@pytest.fixture(scope="session")
def oracle_checkpoint(request: pytest.FixtureRequest) -> Path:
    return _folder(request.config, "--oracle-checkpoint")
