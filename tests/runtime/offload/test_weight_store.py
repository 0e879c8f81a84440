"""Groups come to the device as the strict loader would have put them, whatever the layout."""

import errno
import mmap
from pathlib import Path

import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import Layout
from h3serve.runtime.offload.weight_store import FileStore, HostStore
from h3serve.weights.files.memory_buffers import ALIGN, Flat, host_buffer
from h3serve.weights.files.tensor_reader import TensorReader
from tests.runtime.stores import block_groups, shapes, tiny_index, write_tiny

CPU = torch.device("cpu")


def store_of(folder: Path, layout: Layout, dtype: torch.dtype | None = None) -> FileStore:
    held, index = shapes(), tiny_index(folder)
    return FileStore(
        index,
        block_groups(layout),
        shape_of=lambda entry: held[entry.target],
        dtype_of=lambda entry: dtype or index.tensors[entry.sources[0]].dtype,
        device=CPU,
    )


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_groups_equal_the_loaded_network(tmp_path: Path, layout: Layout) -> None:
    network = write_tiny(tmp_path, layout)
    files = store_of(tmp_path, layout)
    host = HostStore(files.flats, files.send, pinned=False)
    for number, block in enumerate(network.transformer.blocks):
        for store in (files, host):
            target = host_buffer(store.flats[number].num_bytes, pinned=False)
            store.send(number, target)
            views = store.flats[number].views(target)
            assert set(views) == set(block.state_dict())
            for name, value in block.state_dict().items():
                assert torch.equal(views[name], value), name
    assert files.reader.bytes_read >= 2 * sum(p.nbytes for p in network.transformer.blocks.parameters())
    files.close()


def test_cast_on_the_way(tmp_path: Path) -> None:
    network = write_tiny(tmp_path)
    store = store_of(tmp_path, "original", torch.bfloat16)
    target = host_buffer(store.flats[1].num_bytes, pinned=False)
    store.send(1, target)
    weight = network.transformer.blocks[1].state_dict()["mlp.fc2.weight"]
    assert torch.equal(store.flats[1].views(target)["mlp.fc2.weight"], weight.bfloat16())
    store.close()


def test_a_file_cut_off_while_in_use_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    store = store_of(tmp_path, "original")
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 4)
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends inside"):
        for number in range(len(store.flats)):
            store.send(number, host_buffer(store.flats[number].num_bytes, pinned=False))
    store.close()


def test_flat_places_are_aligned_and_apart() -> None:
    flat = Flat.of({"a": ((3, 5), torch.float32), "b": ((7,), torch.bfloat16), "c": ((2,), torch.int64)})
    views = flat.views(host_buffer(flat.num_bytes, pinned=False).zero_())
    for place in flat.places.values():
        assert place.offset % ALIGN == 0
    views["a"].fill_(1), views["c"].fill_(3)
    assert not views["b"].any() and views["a"].shape == (3, 5)


def test_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Small)
    buffer = host_buffer(5000, pinned=False)
    assert buffer.fill_(7).sum() == 35_000


def test_a_weight_file_that_is_gone(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    index = tiny_index(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        TensorReader(index, [list(index.tensors)]).read(0, CPU)
