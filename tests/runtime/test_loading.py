"""What a load says while it goes, and that it is refused before it begins where the host cannot hold it."""

import logging

import pytest
import torch

from h3serve.core.errors import CapacityError
from h3serve.runtime import loading
from h3serve.runtime.loading import How, place
from h3serve.runtime.offload.placement import Mode, OffloadedNetwork
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.files.checkpoint_folder import ModelFolder, open_folder
from h3serve.weights.files.tensor_reader import TensorReader
from h3serve.weights.formats.opened_component import open_component

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    path = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(path)
    return open_folder(path)


@pytest.mark.parametrize("mode", ["offload", "stream"])
def test_what_the_host_cannot_hold_is_refused_before_a_byte_is_read(
    folder: ModelFolder, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: object) -> int:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "host_memory", lambda: (2**30, 1000))
    monkeypatch.setattr(TensorReader, "read", read)
    with pytest.raises(CapacityError, match="text_encoder needs .* GiB of host memory, 0.0 GiB are free"):
        place(open_component(folder, "text_encoder", "fl2va"), How(mode), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("mode", ["resident", "offload"])
def test_progress_is_told_with_its_rate(
    folder: ModelFolder, mode: Mode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "SAY_S", 0.0)
    with caplog.at_level(logging.INFO, "h3serve.runtime.loading"):
        placement = place(open_component(folder, "transformer", "fl2va"), How(mode), device=CPU, dtype=torch.float32)
    lines = [record.getMessage() for record in caplog.records]
    groups = 1 + len(placement.module.transformer.blocks)  # type: ignore[union-attr, arg-type]
    assert len(lines) == groups + 1 and all("GiB/s" in line and line.startswith("transformer:") for line in lines)
    assert isinstance(placement, OffloadedNetwork) == (mode == "offload")


def test_a_quick_load_says_one_line(folder: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "h3serve.runtime.loading"):
        place(open_component(folder, "transformer", "fl2va"), How(), device=CPU, dtype=torch.float32)
    assert len(caplog.records) == 1
