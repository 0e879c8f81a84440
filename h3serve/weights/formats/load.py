"""From files to a module: strict, one tensor at a time, straight into the final memory.

A module is built on the meta device and then filled. Host memory beyond the module itself peaks at
the mapped bytes of one stored tensor, plus one chunk where a device wants another dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from h3serve.core.errors import CheckpointError
from h3serve.models.kernels.float8_linear import Float8Linear
from h3serve.models.key_map import Entry, KeyMap
from h3serve.weights.files.name_list import some
from h3serve.weights.files.rank_parts import Part, PartOf, everything
from h3serve.weights.files.tensor_index import TensorIndex, TensorInfo
from h3serve.weights.formats.header_checks import joined

CHUNK_BYTES = 8 * 2**20
DtypeOf = Callable[[str], torch.dtype]  # our name of a tensor -> the dtype it is held in


def nothing(name: str) -> bool:
    """No tensor is skipped."""
    del name
    return False


@torch.no_grad()
def load_weights(
    module: nn.Module,
    index: TensorIndex,
    key_map: KeyMap,
    *,
    device: torch.device | str = "cpu",
    dtype_of: DtypeOf | None = None,
    skip: Callable[[str], bool] = nothing,
    part_of: PartOf = everything,
) -> None:
    """Fill a meta module from files that were found to fit it (`checks.py`).

    Without `dtype_of`, tensors keep their stored dtype.

    Tensors that `skip` names have to be in the files, but are not read and stay on meta. `part_of` tells which
    tensors of the module are only a part of what the files hold.
    Stored rows go to their place by the entry's `reorder`; several sources are put one after another.
    Buffers that no file holds stay on meta: the module makes those itself (`check_complete`).
    Weights of `Float8Linear` are quantized as they come: one at a time is there in its full size.
    """
    slots = module.state_dict()
    with EntryReader(index) as reader:
        for entry in sorted(key_map.entries, key=lambda entry: _position(entry, index)):
            if skip(entry.target):
                continue
            stored = index.tensors[entry.sources[0]]
            dtype = dtype_of(entry.target) if dtype_of else stored.dtype
            target = torch.empty(slots[entry.target].shape, dtype=dtype, device=device)
            reader.read(entry, target, part_of(entry.target))
            assign(module, entry.target, target)


def read_tensors(index: TensorIndex, key_map: KeyMap, wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """A few of our tensors, in their stored dtype, on the CPU."""
    tensors = {}
    with EntryReader(index) as reader:
        for entry in key_map.entries:
            if entry.target in wanted:
                stored = [index.tensors[source] for source in entry.sources]
                shape = joined([tensor.shape for tensor in stored])
                assert shape is not None
                tensors[entry.target] = torch.empty(shape, dtype=stored[0].dtype)
                reader.read(entry, tensors[entry.target])
    return tensors


class EntryReader:
    """Reads entries into given memory, with at most the bytes of the largest tensor mapped.

    Closing a file unmaps the pages that were read of it; without that they add up to whole shards.
    """

    def __init__(self, index: TensorIndex) -> None:
        self._index = index
        self._budget = max((tensor.num_bytes for tensor in index.tensors.values()), default=0)
        self._file: Path | None = None
        self._mapped = 0
        self._stack = ExitStack()

    def __enter__(self) -> EntryReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @torch.no_grad()
    def read(self, entry: Entry, target: torch.Tensor, part: Part | None = None) -> None:
        """Put an entry's sources, or a part of them, into `target`, which may be on any device and of any dtype."""
        rows = torch.atleast_1d(target)
        place = row_places(entry, part.whole(tuple(rows.shape))[0] if part else len(rows))
        if part and part.axis == 0:
            place = places_in(part, place)
        start = 0
        for source in entry.sources:
            stored = torch.atleast_1d(self._stored(self._index.tensors[source]))
            count = len(stored)
            if part and part.axis == 1:
                first = part.index * rows.shape[1]
                stored = stored[:, first : first + rows.shape[1]]
            _copy(stored, rows, place[start : start + count])
            start += count

    def _stored(self, tensor: TensorInfo) -> torch.Tensor:
        if tensor.file != self._file or self._mapped + tensor.num_bytes > self._budget:
            self._stack.close()
            self._open = self._stack.enter_context(_open(tensor.file))
            self._file, self._mapped = tensor.file, 0
        self._mapped += tensor.num_bytes
        return self._open.get_tensor(tensor.name)


def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def row_places(entry: Entry, rows: int) -> torch.Tensor:
    """int64 `[rows]`: our row of each stored row (sources one after another)."""
    ours = torch.arange(rows)
    if entry.reorder is None:
        return ours
    place = torch.empty_like(ours)
    place[entry.reorder(ours)] = ours
    return place


def places_in(part: Part, place: torch.Tensor) -> torch.Tensor:
    """Places among all our rows to places in a part of them; -1 for the rows of other parts."""
    own = part.positions(len(place))
    local = torch.full_like(place, -1)
    local[own] = torch.arange(len(own))
    return local[place]


def _copy(stored: torch.Tensor, rows: torch.Tensor, place: torch.Tensor) -> None:
    """Each stored row to its place among ours; those with a place below 0 stay where they are."""
    longest = max(1, CHUNK_BYTES // max(1, stored[:1].nbytes))
    wanted = (place >= 0).nonzero().flatten()
    for first, end in _runs(wanted, place[wanted], longest):
        source, at = int(wanted[first]), int(place[wanted[first]])
        rows[at : at + end - first].copy_(stored[source : source + end - first])


def _runs(wanted: torch.Tensor, place: torch.Tensor, longest: int) -> Iterator[tuple[int, int]]:
    """Ranges of wanted rows that lie side by side in the file and with us: copied whole, without a temporary."""
    breaks = ((torch.diff(place) != 1) | (torch.diff(wanted) != 1)).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(place)]
    for first, end in pairwise(edges):
        for at in range(first, end, longest):
            yield at, min(at + longest, end)


def _position(entry: Entry, index: TensorIndex) -> tuple[str, int]:
    first = index.tensors[entry.sources[0]]
    return first.file.name, first.start


def assign(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Puts `value` where the parameter or buffer `name` was; a `Float8Linear` quantizes it."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(owner, Float8Linear) and leaf == "weight":
        owner.set_weight(value)
    elif leaf in owner._parameters:
        setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
    else:
        setattr(owner, leaf, value)


def check_complete(module: nn.Module, skip: Callable[[str], bool] = nothing) -> None:
    """No tensor is left without memory, those that no file holds included; `skip` names the exceptions."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta and not skip(name)]:
        raise AssertionError(f"{type(module).__name__} still has no memory for {some(empty)}")
