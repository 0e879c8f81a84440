"""What was encoded before is not encoded again; what is dropped, or damaged on disk, is."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from h3serve.runtime.checkpoint_identity import Identities
from h3serve.runtime.encoding_cache import EncodingCache, Tensors, digest_of, folder_for
from h3serve.weights.files.tensor_index import read_index

IDENTITIES = Identities(None)


class Maker:
    def __init__(self, size: int = 4) -> None:
        self.calls, self.size = 0, size

    def __call__(self) -> Tensors:
        self.calls += 1
        return {"states": torch.full((self.size,), float(self.calls)).bfloat16()}


def test_the_same_name_is_made_once() -> None:
    cache, make = EncodingCache(), Maker()
    first = cache.get("a", make)["states"]
    assert torch.equal(cache.get("a", make)["states"], first) and make.calls == 1
    assert (cache.hits, cache.misses) == (1, 1)


def test_a_digest_sees_values_shapes_dtypes_and_kind() -> None:
    zeros = np.zeros((2, 3), np.uint8)
    names = [
        digest_of("video", zeros),
        digest_of("sound", zeros),
        digest_of("video", zeros.reshape(3, 2)),
        digest_of("video", zeros.astype(np.int8)),
        digest_of("video", zeros + 1),
        digest_of("video", zeros, None),
        digest_of("video", zeros, "None"),
        digest_of("video", torch.zeros(6, dtype=torch.uint8)),
    ]
    assert len(set(names)) == len(names)
    assert digest_of("video", np.zeros((3, 2), np.uint8).T) == names[0]


def test_the_least_recently_used_make_room() -> None:
    cache, make = EncodingCache(24), Maker()
    for name in ("a", "b", "c", "a", "d"):
        cache.get(name, make)
    assert list(cache._held) == ["c", "a", "d"] and cache.num_bytes == 24 and cache.evictions == 1
    cache.get("large", Maker(1000))
    assert list(cache._held) == ["c", "a", "d"]


def test_on_disk_across_processes(tmp_path: Path) -> None:
    made = EncodingCache(folder=tmp_path).get("a", Maker())
    again = Maker()
    found = EncodingCache(folder=tmp_path).get("a", again)
    assert torch.equal(found["states"], made["states"]) and found["states"].dtype == torch.bfloat16
    assert again.calls == 0


@pytest.mark.parametrize("damage", [lambda _: b"torn", lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    EncodingCache(folder=tmp_path).get("a", Maker())
    file = tmp_path / "a.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    make = Maker()
    EncodingCache(folder=tmp_path).get("a", make)
    assert make.calls == 1
    assert EncodingCache(folder=tmp_path).get("a", make)["states"].numel() == 4 and make.calls == 1


def test_the_folder_is_bounded_and_a_full_disk_is_no_failure(tmp_path: Path) -> None:
    size = (lambda c: (c.get("a", Maker()), (tmp_path / "a.safetensors").stat().st_size)[1])(
        EncodingCache(folder=tmp_path)
    )
    os.utime(tmp_path / "a.safetensors", (1, 1))
    EncodingCache(folder=tmp_path, disk_bytes=size).get("b", Maker())
    assert [p.name for p in tmp_path.iterdir()] == ["b.safetensors"]
    (tmp_path / "file").write_text("in the way")
    assert EncodingCache(folder=tmp_path / "file" / "x").get("c", Maker())["states"].numel() == 4


def test_one_process_of_a_replica_writes_and_all_read(tmp_path: Path) -> None:
    reader, make = EncodingCache(folder=tmp_path, writes=False), Maker()
    reader.get("a", make)
    assert not list(tmp_path.iterdir()) and make.calls == 1
    EncodingCache(folder=tmp_path).get("b", Maker())
    reader.get("b", make)
    assert make.calls == 1 and (reader.hits, reader.disk_hits) == (1, 1)


def test_each_set_of_weights_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for name, value in (("one", 0.0), ("two", 1.0)):
        (tmp_path / name).mkdir()
        save_file({"weight": torch.full((3,), value)}, tmp_path / name / "model.safetensors")
    one, two = (read_index(tmp_path / name) for name in ("one", "two"))
    folders = [
        folder_for(tmp_path, [one, two], IDENTITIES, "cpu"),
        folder_for(tmp_path, [two, one], IDENTITIES, "cpu"),
        folder_for(tmp_path, [one, two], IDENTITIES, "cuda"),
        folder_for(tmp_path, [one, one], IDENTITIES, "cpu"),
    ]
    assert len(set(folders)) == 4 and folders[0] == folder_for(tmp_path, [one, two], IDENTITIES, "cpu")


def test_clear(tmp_path: Path) -> None:
    cache, make = EncodingCache(folder=tmp_path), Maker()
    cache.get("a", make)
    cache.clear()
    assert not list(tmp_path.iterdir()) and cache.num_bytes == 0
    cache.get("a", make)
    assert make.calls == 2


def test_made_inside_inference_mode_usable_outside() -> None:
    cache = EncodingCache()
    with torch.inference_mode():
        cache.get("a", Maker())
    assert not cache.get("a", Maker())["states"].is_inference()
