"""From an opened component to a network with its weights, whose checksums are compared.

A module is built on the meta device and then filled, one tensor at a time, straight into its final memory. Host
memory beyond the module peaks at the stored bytes of the largest tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import nn

from h3serve.models.kernels.float8_linear import Float8Linear, use_float8
from h3serve.models.key_map import Entry, KeyMap
from h3serve.models.module_tensors import check_complete, nothing, set_tensors
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.weights.files.tensor_index import TensorIndex
from h3serve.weights.files.tensor_reader import Ranges, TensorReader, Tensors
from h3serve.weights.formats.checksums import CHECKED, key
from h3serve.weights.formats.entry_rows import PartOf, Shard, arrange, everything, rows_of, runs_of
from h3serve.weights.formats.header_checks import joined
from h3serve.weights.formats.opened_component import OpenedComponent
from h3serve.weights.formats.weight_checks import Finding, examine, precision, report, sampled

DtypeOf = Callable[[str], torch.dtype]  # our name of a tensor -> the dtype it is held in


def load_component(
    opened: OpenedComponent,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    float8: bool = False,
    skip: Callable[[str], bool] = nothing,
    shard: Shard | None = None,
) -> nn.Module:
    """A network with its weights, checked; `dtype` is what it computes in.

    Tensors that `skip` names stay in the files.
    What must be float32 (the transformer's islands, most of the VAEs) is so whatever `dtype` is. With `float8`
    the layers that 8 bits are meant for are quantized while they are read. `shard` makes the network smaller before
    its weights come, a rank's share; what was recorded of whole tensors is then not compared.
    CheckpointError names the file, tensor or fault.
    """
    module = opened.build()
    assert not (shard and float8), "8-bit layers are not sharded"
    part_of = shard(module) if shard else everything
    if float8:
        use_float8(module, opened.recipe.float8_linears, dtype)
    load_weights(
        module,
        opened.index,
        opened.key_map,
        device=device,
        dtype_of=lambda tensor: opened.dtype_of(tensor, dtype),
        skip=skip,
        part_of=part_of,
    )
    if isinstance(module, TextEncoder):
        module.reset_buffers(device)
    check_complete(module, skip)
    held = {target: value for target, value in module.state_dict().items() if not value.is_meta}
    check_loaded(opened, held | _unquantized(opened, module), whole=shard is None)
    return module


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
    """Fills a meta module from files that were found to fit it (`header_checks.py`).

    Without `dtype_of`, tensors keep their stored dtype.

    Tensors that `skip` names have to be in the files, but are not read and stay on meta. `part_of` tells which
    tensors of the module are only a part of what the files hold.
    Buffers that no file holds stay on meta: the module makes those itself (`check_complete`).
    Weights of `Float8Linear` are quantized as they come: one at a time is there in its full size.
    """
    device, slots = torch.device(device), module.state_dict()
    entries = [entry for entry in key_map.entries if not skip(entry.target)]
    runs = {entry.target: runs_of(entry, index, part_of(entry.target)) for entry in entries}
    rows = rows_of(run for entry in entries if part_of(entry.target) for run in runs[entry.target])
    for entry, stored in stored_entries(index, entries, device, rows=rows):
        dtype = dtype_of(entry.target) if dtype_of else stored[entry.sources[0]].dtype
        value = torch.empty(slots[entry.target].shape, dtype=dtype, device=device)
        arrange(runs[entry.target], stored, value)
        _hold(module, entry.target, value)


def stored_entries(
    index: TensorIndex,
    entries: Iterable[Entry],
    device: torch.device,
    *,
    rows: Mapping[str, Ranges] = MappingProxyType({}),
) -> Iterator[tuple[Entry, Tensors]]:
    """Each entry with its stored tensors on `device`, in the order of the files; good until the next one.

    Of stored tensors in `rows` only those rows are read.
    """
    ordered = sorted(entries, key=lambda entry: _position(entry, index))
    batches, pinned = [entry.sources for entry in ordered], device.type == "cuda"
    with TensorReader(index, batches, rows=rows, pinned=pinned) as reader:
        for number, entry in enumerate(ordered):
            yield entry, reader.read(number, device)


def _hold(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Puts `value` where the parameter or buffer `name` was, in the form that its layer holds it in."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(owner, Float8Linear) and leaf == "weight":
        owner.set_weight(value)
    else:
        set_tensors(owner, {leaf: value})


def _position(entry: Entry, index: TensorIndex) -> tuple[str, int]:
    first = index.tensors[entry.sources[0]]
    return first.file.name, first.start


def read_tensors(index: TensorIndex, entries: Iterable[Entry], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """A few of our tensors, in their stored dtype, on the CPU."""
    chosen, tensors = [entry for entry in entries if entry.target in wanted], {}
    for entry, stored in stored_entries(index, chosen, torch.device("cpu")):
        shape = joined([tuple(tensor.shape) for tensor in stored.values()])
        assert shape is not None
        value = tensors[entry.target] = torch.empty(shape, dtype=stored[entry.sources[0]].dtype)
        arrange(runs_of(entry, index), stored, value)
    return tensors


def check_loaded(opened: OpenedComponent, held: Mapping[str, torch.Tensor], *, whole: bool = True) -> None:
    """Compares checksums with weights that were loaded, by our names; CheckpointError names the fault.

    Recorded tensors that were not loaded are read for it; a rank's share, not `whole`, is not compared.
    """
    recorded = opened.recorded if whole else {}
    skipped = set(recorded.get(key(opened.name, opened.partition), {})) - set(held)
    findings = examine(
        opened.name,
        opened.partition,
        tensors={**held, **read_tensors(opened.index, opened.key_map.entries, skipped)},
        original=opened.original,
        recorded=recorded,
    )
    report(opened.index.folder, (*findings, precision_finding(opened)))


def _unquantized(opened: OpenedComponent, module: nn.Module) -> dict[str, torch.Tensor]:
    """What is looked at of 8-bit weights: their scales, which show NaN and Inf, and stored values to compare."""
    scales = {f"{path}.weight": m.weight_scale for path, m in module.named_modules() if isinstance(m, Float8Linear)}
    compared = {*CHECKED[opened.name], *sampled(scales)} & set(scales)
    return {**scales, **read_tensors(opened.index, opened.key_map.entries, compared)}


def precision_finding(opened: OpenedComponent) -> Finding:
    """Are the float32 islands stored as float32?"""
    return precision(opened.index, opened.key_map, lambda tensor: opened.dtype_of(tensor, torch.bfloat16))
