"""What the safetensors files of a folder hold, from their headers alone (no tensor is read)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from h3serve.core.errors import CheckpointError

STEMS = ("model", "diffusion_pytorch_model")  # original and text encoder; diffusers
LONGEST_NAME = 300  # characters
HEADER_LIMIT = 100_000_000  # bytes; the limit of the format
SHOWN = 3  # names of a long list
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor: where it is and what it is."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # byte offset in the file's data part: reading in this order is sequential
    num_bytes: int


@dataclass(frozen=True)
class TensorIndex:
    """All tensors of one component, by name."""

    folder: Path
    tensors: Mapping[str, TensorInfo]

    @property
    def total_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def read_index(folder: Path) -> TensorIndex:
    """Every tensor of a component's folder; CheckpointError names the missing, cut or odd file."""
    files = weight_files(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in tensors:
                other = tensors[tensor.name].file.name
                raise CheckpointError(f"{folder}: {tensor.name} is in both {other} and {file.name}")
            tensors[tensor.name] = tensor
    _check_weight_map(folder, tensors)
    return TensorIndex(folder, tensors)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder: those its index names, or the single one; no others may lie beside them."""
    files = _named_files(folder)
    if extra := sorted(file.name for file in folder.glob("*.safetensors") if file not in files and file.is_file()):
        raise CheckpointError(f"{folder}: {some(extra)} lies beside the weights and would not be used")
    return files


def _named_files(folder: Path) -> tuple[Path, ...]:
    for stem in STEMS:
        if (single := folder / f"{stem}.safetensors").is_file():
            return (single,)
        if mapped := _weight_map(folder, stem):
            files = tuple(folder / name for name in sorted(set(mapped.values())))
            if missing := [file.name for file in files if not file.is_file()]:
                raise CheckpointError(f"{folder}: weight file missing: {some(missing)}")
            return files
    wanted = " or ".join(f"{stem}.safetensors[.index.json]" for stem in STEMS)
    raise CheckpointError(f"{folder}: no weight files here ({wanted} is needed)")


def read_header(file: Path) -> tuple[TensorInfo, ...]:
    """The tensors of one safetensors file; a file shorter than its header promises is named as cut."""
    return read_header_and_metadata(file)[0]


def read_header_and_metadata(file: Path) -> tuple[tuple[TensorInfo, ...], Any]:
    """The tensors of one safetensors file as in `read_header`, and its `__metadata__` as it is, {} if there is none."""
    try:
        return _read_header(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None


def _read_header(file: Path) -> tuple[tuple[TensorInfo, ...], Any]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or 8 + length > size:
            raise CheckpointError(f"{file} is cut off inside its header ({size} bytes are there)")
        if length > HEADER_LIMIT:
            raise CheckpointError(f"{file} is not a safetensors file")
        header = _parse(stream.read(length), file)
    metadata = header.pop("__metadata__", {})
    tensors = tuple(_tensor(name, entry, file) for name, entry in header.items())
    promised = 8 + length + _data_bytes(tensors, file)
    if size != promised:
        what = "is cut off" if size < promised else "has bytes after its last tensor"
        raise CheckpointError(f"{file} {what}: {size} bytes are there, its header says {promised}")
    return tensors, metadata


def _data_bytes(tensors: Sequence[TensorInfo], file: Path) -> int:
    """Bytes of all tensors, which lie one after another: no two share bytes, and none belong to nobody."""
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.num_bytes)):
        if tensor.start != end:
            raise CheckpointError(f"{file}: {tensor.name} begins at byte {tensor.start}, where {end} was expected")
        end += tensor.num_bytes
    return end


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; CheckpointError if the file is missing or is not one."""
    try:
        return _parse(file.read_bytes(), file)
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None


def _parse(data: bytes, file: Path) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} does not parse as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} does not hold a JSON object")
    return value


def _tensor(name: str, entry: Any, file: Path) -> TensorInfo:
    if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise CheckpointError(f"{file}: {name[:80]!r} is not a name of a tensor")
    try:
        dtype, shape = DTYPES.get(entry["dtype"]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{file}: the header entry of {name} is damaged") from None
    if dtype is None:
        raise CheckpointError(f"{file}: {name} has the unknown dtype {str(entry['dtype'])[:40]!r}")
    if end - start != prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{file}: {name} has {end - start} bytes, which is not {list(shape)}")
    return TensorInfo(name, file, dtype, shape, start, end - start)


def _weight_map(folder: Path, stem: str) -> dict[str, str]:
    file = folder / f"{stem}.safetensors.index.json"
    if not file.is_file():
        return {}
    mapped = read_json(file).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise CheckpointError(f"{file} has no weight_map")
    return mapped


def _check_weight_map(folder: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """A shard exchanged for another one shows here: index and headers disagree."""
    for stem in STEMS:
        if (folder / f"{stem}.safetensors").is_file():
            return
        if mapped := _weight_map(folder, stem):
            held = {name: tensor.file.name for name, tensor in tensors.items()}
            if wrong := sorted(n for n in mapped | held if mapped.get(n) != held.get(n)):
                raise CheckpointError(f"{folder}: the index and the weight files disagree about {some(wrong)}")
            return


def some(names: Collection[str]) -> str:
    """The first few names of a list and how many more there are, for a sentence."""
    first = ", ".join(list(names)[:SHOWN])
    more = len(names) - SHOWN
    return first if more <= 0 else f"{first} and {more} more"
