"""Memory of the machine that the tests run on."""

import torch

from h3serve.runtime.machine import measure


def test_here() -> None:
    machine = measure(torch.device("cpu"))
    assert 0 < machine.host_free <= machine.host_bytes
