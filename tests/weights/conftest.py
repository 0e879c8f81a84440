"""The demo checkpoint in both layouts, written once, and copies to break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from h3serve.weights.demo.demo_random import write_demo_checkpoint


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "original"
    write_demo_checkpoint(folder, "original")
    return folder


@pytest.fixture(scope="session")
def diffusers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "diffusers"
    write_demo_checkpoint(folder, "diffusers")
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    """The original layout's FL2VA by itself, to be broken."""
    return shutil.copytree(original / "FL2VA", tmp_path / "FL2VA")
