"""Options of the test run."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oracle", "arrays of whole requests recorded with another implementation")
    group.addoption("--oracle", type=Path, help="folder of the recorded .npz files")
    group.addoption("--oracle-checkpoint", type=Path, help="the checkpoint they were recorded with")


def pytest_configure() -> None:
    """Without a GPU, Triton kernels run in its interpreter; it has to know before anyone imports it."""
    if find_spec("triton"):
        import torch

        if not torch.cuda.is_available():
            os.environ["TRITON_INTERPRET"] = "1"
