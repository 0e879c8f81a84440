"""From files to a module: strict, one tensor at a time, straight into the final memory.

A module is built on the meta device and then filled. Host memory beyond the module itself peaks at
the mapped bytes of one stored tensor, plus one chunk where a device wants another dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from itertools import pairwise

import torch
from safetensors import safe_open
from torch import nn

from h3serve.core.errors import CheckpointError
from h3serve.models.keymap import Entry, KeyMap
from h3serve.weights.index import TensorIndex, TensorInfo
from h3serve.weights.names import some

CHUNK_BYTES = 8 * 2**20
DtypeOf = Callable[[str], torch.dtype]  # our name of a tensor -> the dtype it is held in


@torch.no_grad()
def load_weights(
    module: nn.Module,
    index: TensorIndex,
    key_map: KeyMap,
    *,
    device: torch.device | str = "cpu",
    dtype_of: DtypeOf | None = None,
) -> None:
    """Fill a meta module from files. Without `dtype_of`, tensors keep their stored dtype.

    CheckpointError names what is missing, left over or of another shape, before anything is read.
    Stored rows go to their place by the entry's `reorder`; several sources are put one after another.
    Buffers that no file holds stay on meta: the module makes those itself (`check_complete`).
    """
    slots = module.state_dict()
    if set(slots) != {entry.target for entry in key_map.entries}:
        raise AssertionError(f"key map and {type(module).__name__} name different tensors")
    check_names(index, key_map)
    for entry in key_map.entries:
        check_shape(entry, index, tuple(slots[entry.target].shape))
    for entry in sorted(key_map.entries, key=lambda entry: _position(entry, index)):
        stored = index.tensors[entry.sources[0]]
        dtype = dtype_of(entry.target) if dtype_of else stored.dtype
        target = torch.empty(slots[entry.target].shape, dtype=dtype, device=device)
        read_entry(entry, index, target)
        _assign(module, entry.target, target)


def check_names(index: TensorIndex, key_map: KeyMap) -> None:
    """Every source is there, and everything there is a source or knowingly unused."""
    wanted = {source for entry in key_map.entries for source in entry.sources}
    if missing := sorted(wanted - set(index.tensors)):
        raise CheckpointError(f"{index.folder}: {len(missing)} tensors are missing: {some(missing)}")
    extra = sorted(
        name
        for name in set(index.tensors) - wanted
        if not any(fnmatchcase(name, pattern) for pattern in key_map.unused)
    )
    if extra:
        raise CheckpointError(f"{index.folder}: {len(extra)} tensors belong to no part of the model: {some(extra)}")


def check_shape(entry: Entry, index: TensorIndex, shape: tuple[int, ...]) -> None:
    """The sources, one after another along axis 0, have the target's shape."""
    stored = [index.tensors[source].shape for source in entry.sources]
    joined = stored[0]
    if len(stored) > 1:
        joined = (sum(s[0] for s in stored), *stored[0][1:])
    if joined != shape or any(s[1:] != shape[1:] for s in stored):
        found = " + ".join(str(list(s)) for s in stored)
        raise CheckpointError(
            f"{index.folder}: {some(entry.sources)} has shape {found}, the config needs {list(shape)}"
        )


@torch.no_grad()
def read_entry(entry: Entry, index: TensorIndex, target: torch.Tensor) -> None:
    """Read the sources of an entry into `target`, which may be on any device and of any dtype."""
    rows = torch.atleast_1d(target)
    place = row_places(entry, len(rows))
    start = 0
    for source in entry.sources:
        stored = index.tensors[source]
        count = stored.shape[0] if stored.shape else 1
        _read_source(stored, rows, place[start : start + count])
        start += count


def row_places(entry: Entry, rows: int) -> torch.Tensor:
    """int64 `[rows]`: our row of each stored row (sources one after another)."""
    ours = torch.arange(rows)
    if entry.reorder is None:
        return ours
    place = torch.empty_like(ours)
    place[entry.reorder(ours)] = ours
    return place


def _read_source(stored: TensorInfo, rows: torch.Tensor, place: torch.Tensor) -> None:
    # Opened for one tensor only: closing unmaps its pages, so they never add up over a file.
    with safe_open(stored.file, framework="pt") as file:
        source = torch.atleast_1d(file.get_tensor(stored.name))
        step = max(1, CHUNK_BYTES // max(1, source[:1].nbytes))
        for first, end in _runs(place, step):
            at = int(place[first])
            rows[at : at + end - first].copy_(source[first:end])


def _runs(place: torch.Tensor, longest: int) -> Iterator[tuple[int, int]]:
    """Ranges of stored rows that lie side by side with us too: copied whole, without a temporary."""
    breaks = (torch.diff(place) != 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(place)]
    for first, end in pairwise(edges):
        for at in range(first, end, longest):
            yield at, min(at + longest, end)


def _position(entry: Entry, index: TensorIndex) -> tuple[str, int]:
    first = index.tensors[entry.sources[0]]
    return first.file.name, first.start


def _assign(module: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._parameters:
        setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
    else:
        setattr(owner, leaf, value)


def check_complete(module: nn.Module) -> None:
    """No tensor is left without memory, those that no file holds included."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise AssertionError(f"{type(module).__name__} still has no memory for {some(empty)}")
