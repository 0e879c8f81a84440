"""Options of the test run."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oracle", "arrays of whole requests recorded with another implementation")
    group.addoption("--oracle", type=Path, help="folder of the recorded .npz files")
    group.addoption("--oracle-checkpoint", type=Path, help="the checkpoint they were recorded with")
