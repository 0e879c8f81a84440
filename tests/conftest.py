"""Options of the test run."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oracle", "arrays of whole requests recorded with another implementation")
    group.addoption("--oracle", type=Path, help="folder of the recorded .npz files")
    group.addoption("--oracle-checkpoint", type=Path, help="the checkpoint they were recorded with")


def pytest_configure() -> None:
    """One thread a worker: threads that spin for the same two cores starve each other.

    Without a GPU, Triton kernels run in its interpreter; it has to know before anyone imports it.
    """
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start: the same bits from them
    if find_spec("triton") and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
