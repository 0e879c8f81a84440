"""Tables on disk: bit-equal, refused when they are another model's, deleted when damaged."""

import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from h3serve.core.errors import CheckpointError
from h3serve.runtime.adaln.modulation_tables import Key, Pages, TableShape, key_of
from h3serve.runtime.adaln.sidecar import Origin, SidecarFolder, read_sidecar

SHAPE = TableShape(layers=2, hidden=4)
ORIGIN = Origin("fl2va", "0" * 32, "cpu test, torch 0", SHAPE, torch.bfloat16)


def key(*times: float) -> Key:
    return key_of(np.array(times, np.float32))


KEYS = (key(0.0), key(0.25, 0.5), key(0.1, 0.2, 0.999))


def fill(name: Key, pages: Pages) -> None:
    for i, page in enumerate(pages):
        generator = torch.Generator().manual_seed(zlib.crc32(name) + i)
        page.copy_(torch.randn(SHAPE.values, generator=generator))


def pages_of(name: Key) -> list[torch.Tensor]:
    return [torch.zeros(SHAPE.values, dtype=torch.bfloat16) for _ in range(len(name) // 4)]


def folder(tmp_path: Path, origin: Origin = ORIGIN, limit: int = 10**9) -> SidecarFolder:
    return SidecarFolder(tmp_path / "adaln", origin, limit_bytes=limit)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder(tmp_path).write(KEYS, fill)
    other = folder(tmp_path)
    for name in KEYS:
        sidecar = other.find(name)
        assert sidecar is not None
        read, expected = pages_of(name), pages_of(name)
        assert other.read(sidecar, name, read)
        fill(name, expected)
        assert all(torch.equal(a, b) for a, b in zip(read, expected, strict=True))
    assert other.find(key(0.3)) is None


def test_the_published_tensors_and_metadata(tmp_path: Path) -> None:
    path = folder(tmp_path).write(KEYS, fill)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format_version"] == "2" and file.metadata()["model_variant"] == "fl2va"
        assert file.get_tensor("plan_timesteps").dtype == torch.float32
        assert file.get_tensor("plan_timesteps").tolist()[0] == [0.0, 0.0, 0.0]
        assert file.get_tensor("plan_lengths").tolist() == [1, 2, 3]
        assert file.get_tensor("block_params").shape == (3, 3, 2, 72)
        assert file.get_tensor("block_params").dtype == torch.bfloat16
        assert file.get_tensor("final_params").shape == (3, 3, 8)
        assert not file.get_tensor("block_params")[0, 1:].any()


@pytest.mark.parametrize(
    "change", [{"identity": "1" * 32}, {"variant": "ref2va"}, {"maker": "another GPU"}, {"dtype": torch.float32}]
)
def test_files_of_another_origin_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = folder(tmp_path).write(KEYS, fill)
    origin = replace(ORIGIN, **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"is for another model: its \w+ is"):
        read_sidecar(path, origin)
    assert folder(tmp_path, origin).find(KEYS[0]) is None
    assert path.exists()


def test_tables_of_another_size_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path).write(KEYS, fill)
    with pytest.raises(CheckpointError, match="tables of another size"):
        read_sidecar(path, replace(ORIGIN, shape=TableShape(layers=3, hidden=4)))


def test_a_flipped_bit_is_noticed_and_the_file_deleted(tmp_path: Path) -> None:
    path = folder(tmp_path).write(KEYS, fill)
    data = bytearray(path.read_bytes())
    at = data.index(bytes(pages_bytes(KEYS[1])))
    data[at + 3] ^= 1
    path.write_bytes(data)
    there = folder(tmp_path)
    sidecar = there.find(KEYS[1])
    assert sidecar is not None
    assert not there.read(sidecar, KEYS[1], pages_of(KEYS[1]))
    assert not path.exists() and there.damaged == 1 and there.find(KEYS[0]) is None


def pages_bytes(name: Key) -> bytes:
    pages = pages_of(name)
    fill(name, pages)
    return pages[0][: SHAPE.layers * SHAPE.block].view(torch.uint8).numpy().tobytes()


def test_files_that_are_no_sidecars_are_passed_over(tmp_path: Path) -> None:
    there = folder(tmp_path)
    path = there.write(KEYS, fill)
    (path.parent / "other.safetensors").write_bytes(b"not a safetensors file")
    assert there.find(KEYS[0]) is not None


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def failing(name: Key, pages: Pages) -> None:
        raise OSError("no space left on device")

    there = folder(tmp_path)
    with pytest.raises(OSError, match="no space"):
        there.write(KEYS, failing)
    assert list((tmp_path / "adaln").iterdir()) == []


def test_the_least_recently_used_files_make_room(tmp_path: Path) -> None:
    there = folder(tmp_path)
    first, second = there.write([key(0.1)], fill), there.write([key(0.2)], fill)
    os.utime(first, (2, 2)), os.utime(second, (1, 1))
    size = first.stat().st_size
    third = folder(tmp_path, limit=2 * size).write([key(0.3)], fill)
    assert first.exists() and third.exists() and not second.exists()
