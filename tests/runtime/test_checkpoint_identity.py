"""Which weights something was made from: every byte counts, and is read once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3serve.core.errors import CheckpointError
from h3serve.runtime import checkpoint_identity
from h3serve.runtime.checkpoint_identity import Identities
from h3serve.runtime.encoding_cache import folder_for
from h3serve.weights.files.tensor_index import TensorIndex, read_index
from tests.runtime.stores import tiny_index, write_tiny

FILE = "model.safetensors"
SIZES = {"large": 300_000, "small": 5_000, "other": 100}


def write(folder: Path, change: tuple[str, int] | None = None) -> TensorIndex:
    """Three tensors of bytes; one byte of one of them may be another."""
    tensors = {name: torch.arange(size).remainder(251).to(torch.uint8) for name, size in SIZES.items()}
    if change:
        tensors[change[0]][change[1]] += 1
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / FILE)
    return read_index(folder)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_identity, "SETTLED_S", -1.0)


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> str:
        raise AssertionError("weights were read")

    monkeypatch.setattr(checkpoint_identity, "_digest", read)


# Places behind the first 4 KiB, and between any evenly spread samples of 4 KiB.
CHANGES = [("large", 4_096), ("large", 14_000), ("large", 150_001), ("large", 299_999), ("small", 4_500), ("other", 99)]


@pytest.mark.parametrize("change", CHANGES)
def test_one_byte_anywhere_makes_other_weights(tmp_path: Path, change: tuple[str, int]) -> None:
    one, same, tuned = write(tmp_path / "a"), write(tmp_path / "b"), write(tmp_path / "c", change)
    ours = Identities(tmp_path / "kept")
    assert ours.of(one, SIZES) == ours.of(same, SIZES) != ours.of(tuned, SIZES)
    bases = [folder_for(tmp_path, [index], ours, "cpu") for index in (one, same, tuned)]
    assert bases[0] == bases[1] != bases[2], "encodings by a fine-tune have a folder of their own"
    untouched = [name for name in SIZES if name != change[0]]
    assert ours.of(one, untouched) == ours.of(tuned, untouched)


def test_a_fine_tune_that_begins_like_its_base(tmp_path: Path) -> None:
    """Every tensor of a network equal in its first 4 KiB (small ones: in all but the last value)."""
    write_tiny(tmp_path / "base")
    tensors = load_file(tmp_path / "base" / FILE)
    for tensor in tensors.values():
        tensor.view(-1)[max(0, min(1024, tensor.numel() - 1)) :] += 0.5
    (tmp_path / "tuned").mkdir()
    save_file(tensors, tmp_path / "tuned" / FILE)
    one, other = (tiny_index(tmp_path / name) for name in ("base", "tuned"))
    for name in one.tensors:
        assert Identities(None).of(one, [name]) != Identities(None).of(other, [name]), name


def test_names_dtypes_and_shapes_count(tmp_path: Path) -> None:
    flat, found = torch.zeros(8, dtype=torch.int16), set()
    for number, (name, tensor) in enumerate({"a": flat, "b": flat, "a ": flat.view(torch.float16)}.items()):
        (tmp_path / str(number)).mkdir()
        save_file({name.strip(): tensor}, tmp_path / str(number) / FILE)
        found.add(Identities(None).of(read_index(tmp_path / str(number)), [name.strip()]))
    (tmp_path / "3").mkdir()
    save_file({"a": flat.view(2, 4)}, tmp_path / "3" / FILE)
    assert len(found | {Identities(None).of(read_index(tmp_path / "3"), ["a"])}) == 4


def test_the_second_start_reads_nothing(tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    index, kept = write(tmp_path / "a"), tmp_path / "kept"
    first = Identities(kept).of(index, SIZES)
    unread(monkeypatch)
    assert Identities(kept).of(index, SIZES) == first
    (tmp_path / "a").rename(tmp_path / "moved")
    with pytest.raises(AssertionError, match="weights were read"):
        Identities(kept).of(read_index(tmp_path / "moved"), SIZES)


def test_what_was_kept_of_some_tensors_serves_others(tmp_path: Path, settled: None) -> None:
    index, kept = write(tmp_path / "a"), tmp_path / "kept"
    Identities(kept).of(index, ["small"])
    assert Identities(kept).of(index, SIZES) == Identities(None).of(index, SIZES)
    assert Identities(kept).of(index, ["small"]) == Identities(None).of(index, ["small"])


@pytest.mark.parametrize("how", ["in place", "in place, its time set back", "replaced, its time set back"])
def test_a_changed_file_is_read_again(tmp_path: Path, settled: None, how: str) -> None:
    index, kept = write(tmp_path / "a"), tmp_path / "kept"
    file, before = tmp_path / "a" / FILE, Identities(kept).of(index, SIZES)
    seen, data = file.stat(), write(tmp_path / "b", ("large", 150_001)).tensors["large"].file.read_bytes()
    if how.startswith("replaced"):
        (tmp_path / "new").write_bytes(data)
        (tmp_path / "new").replace(file)
    else:
        with file.open("r+b") as stream:
            stream.write(data)
    if how.endswith("back"):
        os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert Identities(kept).of(index, SIZES) == Identities(None).of(index, SIZES) != before


def test_a_file_that_may_still_change_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, kept = write(tmp_path / "a"), tmp_path / "kept"
    Identities(kept).of(index, SIZES)
    assert [record.read_text() for record in kept.iterdir()] == [""]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 0}', '{"version": "every byte, 1", "file": 3}'])
def test_a_damaged_record_is_made_anew(
    tmp_path: Path, settled: None, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, kept = write(tmp_path / "a"), tmp_path / "kept"
    first = Identities(kept).of(index, SIZES)
    (record,) = kept.iterdir()
    record.write_text(damage)
    assert Identities(kept).of(index, SIZES) == first
    unread(monkeypatch)
    assert Identities(kept).of(index, SIZES) == first


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    index = write(tmp_path / "a")
    assert Identities(tmp_path / "file" / "kept").of(index, SIZES) == Identities(None).of(index, SIZES)


def test_ranks_that_ask_at_once_read_once(tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    index, kept, read, digest = write(tmp_path / "a"), tmp_path / "kept", [], checkpoint_identity._digest

    def counting(descriptor: int, data: int, tensor: checkpoint_identity.TensorInfo) -> str:
        read.append(tensor.name)
        return digest(descriptor, data, tensor)

    monkeypatch.setattr(checkpoint_identity, "_digest", counting)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: Identities(kept).of(index, SIZES), range(4)))
    assert len(found) == 1 and sorted(read) == sorted(SIZES)


def test_a_file_that_was_cut_or_is_gone(tmp_path: Path) -> None:
    index = write(tmp_path / "a")
    with (tmp_path / "a" / FILE).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(CheckpointError, match="it was cut off while in use"):
        Identities(tmp_path / "kept").of(index, SIZES)
    (tmp_path / "a" / FILE).unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        Identities(tmp_path / "kept").of(index, SIZES)
