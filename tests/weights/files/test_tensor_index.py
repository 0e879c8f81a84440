"""Headers only: what a folder holds, and every way its files can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from h3serve.core.errors import CheckpointError
from h3serve.weights.files.tensor_index import DTYPES, read_index, read_json, some

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_shards(folder: Path, stem: str = "model") -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}, folder / FIRST)
    save_file({"c": torch.zeros(5, dtype=torch.int64), "d": torch.zeros(())}, folder / SECOND)
    weight_map = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_sharded(stem: str, tmp_path: Path) -> None:
    write_shards(tmp_path, stem)
    index = read_index(tmp_path)
    assert {n: (t.dtype, t.shape, t.num_bytes, t.file.name) for n, t in index.tensors.items()} == {
        "a": (torch.float32, (2, 3), 24, FIRST),
        "b": (torch.bfloat16, (4,), 8, FIRST),
        "c": (torch.int64, (5,), 40, SECOND),
        "d": (torch.float32, (), 4, SECOND),
    }
    assert index.total_bytes == 76


def test_single_file(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    assert list(read_index(tmp_path).tensors) == ["a"]


def test_every_dtype_of_the_table_is_read(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(3, dtype=dtype) for name, dtype in DTYPES.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert {n: t.dtype for n, t in read_index(tmp_path).tensors.items()} == DTYPES


def test_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weight files here"):
        read_index(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"weight file missing: {SECOND}"):
        read_index(tmp_path)


def test_renamed_shards_do_not_pass_for_each_other(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / FIRST).rename(tmp_path / "x")
    (tmp_path / SECOND).rename(tmp_path / FIRST)
    (tmp_path / "x").rename(tmp_path / SECOND)
    with pytest.raises(CheckpointError, match="disagree about a, b, c and 1 more"):
        read_index(tmp_path)


def test_tensor_lacking_in_its_shard(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"c": torch.zeros(5)}, tmp_path / SECOND)
    with pytest.raises(CheckpointError, match="disagree about d"):
        read_index(tmp_path)


@pytest.mark.parametrize("again", [torch.zeros(1), torch.zeros(2, 3)])
def test_tensor_in_two_shards(again: torch.Tensor, tmp_path: Path) -> None:
    """Refused whether or not the two look alike: nobody can know which one is meant."""
    write_shards(tmp_path)
    save_file({"a": again, "c": torch.zeros(5), "d": torch.zeros(())}, tmp_path / SECOND)
    with pytest.raises(CheckpointError, match=f"a is in both {FIRST} and {SECOND}"):
        read_index(tmp_path)


@pytest.mark.parametrize("kept", [0, 5, 30, -1, -30])
def test_truncated_shard_is_named(kept: int, tmp_path: Path) -> None:
    write_shards(tmp_path)
    data = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).write_bytes(data[:kept])
    with pytest.raises(CheckpointError, match=f"{SECOND} is cut off"):
        read_index(tmp_path)


def test_surplus_bytes(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with (tmp_path / SECOND).open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(CheckpointError, match=f"{SECOND} has bytes after its last tensor"):
        read_index(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_lora_weights.safetensors"])
def test_a_file_that_would_not_be_used(name: str, tmp_path: Path) -> None:
    write_shards(tmp_path, "model" if name.startswith("py") else "diffusion_pytorch_model")
    save_file({"a": torch.zeros(2, 3)}, tmp_path / name)
    with pytest.raises(CheckpointError, match="beside the weights and would not be used"):
        read_index(tmp_path)


def header(entry: object) -> bytes:
    text = json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text


def entry_of(start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1 oid sha256:0123", "is cut off inside its header"),
        (header([1]), "does not hold a JSON object"),
        (header({"a": {"dtype": "F32"}}), "the header entry of a is damaged"),
        (header({"a": {"dtype": "F3", "shape": [0], "data_offsets": [0, 0]}}), "unknown dtype 'F3"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), r"not \[2\]"),
        (header({"a": entry_of(0, 4), "b": entry_of(0, 4)}), "b begins at byte 0, where 4 was expected"),
        (header({"a": entry_of(0, 4), "b": entry_of(8, 12)}), "b begins at byte 8, where 4 was expected"),
        (header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}), "the header entry of a is damaged"),
        (header({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}), "the header entry of a is damaged"),
        ((9).to_bytes(8, "little") + b"not json!", "does not parse as JSON"),
    ],
)
def test_other_damage(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=reason):
        read_index(tmp_path)


def test_a_folder_of_a_file_s_name(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors.index.json").mkdir()
    with pytest.raises(CheckpointError, match="no weight files here"):
        read_index(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_json(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_without_weight_map(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="has no weight_map"):
        read_index(tmp_path)


def test_names_in_a_sentence() -> None:
    assert some(["a"]) == "a"
    assert some(list("abc")) == "a, b, c"
    assert some(list("abcde")) == "a, b, c and 2 more"
