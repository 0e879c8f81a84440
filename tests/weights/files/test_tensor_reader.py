"""Rows of stored tensors: only their bytes are read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from h3serve.weights.files import tensor_reader
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.files.tensor_reader import TensorReader

CPU = torch.device("cpu")
STORED = {
    "a": torch.arange(60.0).reshape(10, 6),
    "b": torch.arange(7, dtype=torch.int64),
    "c": torch.tensor(5.0),
    "d": torch.zeros(0, 3),
}


@pytest.mark.parametrize("piece", [5, 24, 1 << 20])
def test_of_a_tensor_some_rows_and_of_others_all(piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece may end inside a row, at its end, or hold them all."""
    monkeypatch.setattr(tensor_reader, "PIECE", piece)
    save_file(STORED, tmp_path / "model.safetensors")
    ranges = [(1, 2), (4, 1), (9, 1)]
    with TensorReader(read_index(tmp_path), [["a", "b"], ["c", "d"]], rows={"a": ranges}) as reader:
        first = reader.read(0, CPU)
        assert all(torch.equal(first["a"][at : at + n], STORED["a"][at : at + n]) for at, n in ranges)
        assert torch.equal(first["b"], STORED["b"])
        assert reader.bytes_read == 4 * 6 * 4 + 7 * 8
        second = reader.read(1, CPU)
        assert second["c"] == 5.0 and second["d"].shape == (0, 3)
        assert reader.bytes_read == 4 * 6 * 4 + 7 * 8 + 4
