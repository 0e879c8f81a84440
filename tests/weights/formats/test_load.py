"""Strict streaming load, on toy modules: every value in its place, every fault named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import Entry, KeyMap, same, split_heads_interleaved, swap_halves
from h3serve.models.module_tensors import check_complete
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.formats.header_checks import check_stored
from h3serve.weights.formats.load import load_weights

HEADS, HEAD_DIM, WIDTH, INNER = 3, 4, 5, 6


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD_DIM)
        self.fc1 = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.gain = nn.Parameter(torch.empty(WIDTH))
        self.scale = nn.Parameter(torch.empty(()))
        self.register_buffer("taps", torch.empty(2, 2))


def meta_toy() -> Toy:
    with torch.device("meta"):
        return Toy()


def key_map(layout: str) -> KeyMap:
    rest = same("gain", "scale", "taps")
    if layout == "original":
        reorder, restore = split_heads_interleaved(HEADS, HEAD_DIM)
        qkv = (Entry(name, (name,), reorder=reorder, restore=restore) for name in ("qkv.weight", "qkv.bias"))
        return KeyMap((*qkv, *same("fc1.weight"), *rest), unused=("dropped.*",))
    split = (Entry(f"qkv.{leaf}", tuple(f"to_{kind}.{leaf}" for kind in "qkv")) for leaf in ("weight", "bias"))
    fc1 = Entry("fc1.weight", ("net.weight",), reorder=swap_halves, restore=swap_halves)
    return KeyMap((*split, fc1, *rest))


SHAPES = {name: tuple(value.shape) for name, value in meta_toy().state_dict().items()}


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {n: torch.randn(t.shape, generator=generator) for n, t in meta_toy().state_dict().items()}


def original_file(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same module as the original layout stores it, spelled out head by head."""
    stored = dict(state)
    for name in ("qkv.weight", "qkv.bias"):
        q, k, v = state[name].chunk(3)
        heads = [part[i * HEAD_DIM :][:HEAD_DIM] for i in range(HEADS) for part in (q, k, v)]
        stored[name] = torch.cat(heads)
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def diffusers_file(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored = {name: state[name] for name in ("gain", "scale", "taps")}
    for leaf in ("weight", "bias"):
        for kind, part in zip("qkv", state[f"qkv.{leaf}"].chunk(3), strict=True):
            stored[f"to_{kind}.{leaf}"] = part.contiguous()
    gate, up = state["fc1.weight"].chunk(2)
    stored["net.weight"] = torch.cat([up, gate])
    return stored


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_every_value_in_its_place(
    layout: str,
    state: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    stored = original_file(state) if layout == "original" else diffusers_file(state)
    toy = meta_toy()
    load_weights(toy, read_index(write(tmp_path, stored)), key_map(layout))
    loaded = toy.state_dict()
    assert set(loaded) == set(state)
    for name, value in state.items():
        assert torch.equal(loaded[name], value), name
    assert isinstance(toy.gain, nn.Parameter) and not toy.gain.requires_grad
    assert not isinstance(toy.taps, nn.Parameter)


def test_dtype_of_each_parameter(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    toy = meta_toy()
    folder = write(tmp_path, original_file(state))

    def dtype_of(name: str) -> torch.dtype:
        return torch.float32 if name == "gain" else torch.bfloat16

    load_weights(toy, read_index(folder), key_map("original"), dtype_of=dtype_of)
    assert toy.gain.dtype == torch.float32
    assert torch.equal(toy.qkv.weight, state["qkv.weight"].bfloat16())


def test_sharded(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write_shards(tmp_path, original_file(state))
    toy = meta_toy()
    load_weights(toy, read_index(tmp_path), key_map("original"))
    assert torch.equal(toy.qkv.weight, state["qkv.weight"])


def write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:3], "model-00002-of-00002.safetensors": names[3:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_unused_tensors_are_allowed_by_pattern_only(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    stored = original_file(state) | {"dropped.weight": torch.ones(1)}
    check_stored(read_index(write(tmp_path, stored)), key_map("original"), SHAPES)
    stored |= {"surprise": torch.ones(1)}
    with pytest.raises(CheckpointError, match="1 tensors belong to no part of the model .*: surprise"):
        check_stored(read_index(write(tmp_path, stored)), key_map("original"), SHAPES)


def test_missing_tensors_are_named_and_counted(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    stored = original_file(state)
    for name in ("gain", "scale", "taps", "qkv.bias"):
        del stored[name]
    with pytest.raises(CheckpointError, match="4 tensors are missing: gain, qkv.bias, scale and 1 more"):
        check_stored(read_index(write(tmp_path, stored)), key_map("original"), SHAPES)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_wrong_shape(layout: str, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    stored = original_file(state) if layout == "original" else diffusers_file(state)
    name = "qkv.weight" if layout == "original" else "to_k.weight"
    stored[name] = torch.zeros(7, WIDTH)
    with pytest.raises(CheckpointError, match=rf"{name}.*\[36, 5\]"):
        check_stored(read_index(write(tmp_path, stored)), key_map(layout), SHAPES)


def test_a_key_map_of_another_module_is_our_own_mistake(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    index = read_index(write(tmp_path, original_file(state)))
    with pytest.raises(AssertionError, match="different tensors"):
        check_stored(index, KeyMap(same("gain")), SHAPES)


def test_memory_left_on_meta_is_our_own_mistake(tmp_path: Path) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1))
            self.register_buffer("table", torch.arange(3), persistent=False)

    with torch.device("meta"):
        module = Constant()
    index = read_index(write(tmp_path, {"weight": torch.ones(1)}))
    load_weights(module, index, KeyMap(same("weight")))
    with pytest.raises(AssertionError, match="no memory for table"):
        check_complete(module)


MEASURE = """
import sys, torch
from pathlib import Path
from torch import nn
from h3serve.models.key_map import Entry, KeyMap, split_heads_interleaved
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.formats.load import load_weights

def kilobytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

HEADS, WIDTH, LAYERS = 64, 1024, 4
reorder, restore = split_heads_interleaved(HEADS, 128)
names = [f"{i}.weight" for i in range(LAYERS)]
key_map = KeyMap(tuple(Entry(name, (name,), reorder, restore) for name in names))
index = read_index(Path(sys.argv[1]))
largest = max(t.num_bytes for t in index.tensors.values())
for dtype in (torch.bfloat16, torch.float32):
    torch.zeros(4, 4, dtype=torch.bfloat16).to(dtype)
    with torch.device("meta"):
        module = nn.ModuleList(nn.Linear(WIDTH, 3 * HEADS * 128, bias=False) for _ in range(LAYERS))
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    load_weights(module, index, key_map, dtype_of=lambda _: dtype)
    model = sum(p.nbytes for p in module.parameters())
    print((kilobytes("VmHWM") - before) * 1024 - model, largest)
    del module
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_host_memory(tmp_path: Path) -> None:
    """Beyond the model: under 1.2 times the largest tensor (48 MiB here), reordering and casting."""
    tensors = {f"{i}.weight": torch.zeros(3 * 64 * 128, 1024, dtype=torch.bfloat16) for i in range(4)}
    write(tmp_path, tensors)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    root = Path(__file__).parents[2]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.splitlines()
    assert len(lines) == 2  # as stored, and cast to float32
    for line in lines:
        beyond, largest = map(int, line.split())
        assert largest == 48 * 2**20
        assert 0 < beyond < 1.2 * largest, f"{beyond / largest:.2f} of the largest tensor"
