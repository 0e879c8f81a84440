"""Do stored tensors fit a network, by their headers alone? Complaints about names, shapes and dtypes are made here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import Entry, KeyMap
from h3serve.weights.files.tensor_index import TensorIndex, some

Shape = tuple[int, ...]

# Tensors of an adapter, as trainers name them. Not `.alpha`: the audio VAE's activations have tensors of that name.
_ADAPTER = re.compile(r"(^|[._])(lora|loha|lokr|hada|dora)_|\.diff(_b)?$")
# What lies beside quantized weights, as packers name it; only looked for among tensors that no network wants.
_QUANTIZED = re.compile(
    r"(weight|input|output|act)_scale|scale_(weight|input|inv)|scaled_fp8|\.w?scales?$|comfy_quant|\.SCB$|absmax|"
    r"quant_(map|state)|qweight|qzeros|g_idx|zero_point"
)


def check_stored(index: TensorIndex, key_map: KeyMap, shapes: Mapping[str, Shape]) -> None:
    """CheckpointError unless the files hold what a network of these shapes is made of, and nothing else.

    `shapes` are those of the network's own tensors. Headers decide: no tensor is read.
    """
    if set(shapes) != {entry.target for entry in key_map.entries}:
        raise AssertionError(f"{index.folder}: key map and network name different tensors")
    _check_names(index, key_map)
    _check_dtypes(index, key_map)
    for entry in key_map.entries:
        _check_shape(entry, index, shapes[entry.target])


def adapter_layer(names: Iterable[str]) -> str | None:
    """The first of these tensors that is a layer of an adapter (a LoRA or the like); None if there is none."""
    return next(filter(_ADAPTER.search, names), None)


def joined(shapes: list[Shape]) -> Shape | None:
    """The shape of several tensors one after another; None if they do not fit together."""
    first = shapes[0]
    if len(shapes) == 1:
        return first
    if any(not shape or shape[1:] != first[1:] for shape in shapes):
        return None
    return sum(shape[0] for shape in shapes), *first[1:]


def _check_names(index: TensorIndex, key_map: KeyMap) -> None:
    """Every source is there, and everything there is a source or knowingly unused."""
    wanted = {source for entry in key_map.entries for source in entry.sources}
    extra = sorted(name for name in set(index.tensors) - wanted if not _is_unused(name, key_map))
    if adapter := [name for name in extra if _ADAPTER.search(name)]:
        raise _fault(index, adapter, "belong to an adapter; merge it into the weights first")
    if scales := [name for name in extra if _QUANTIZED.search(name)]:
        raise _fault(index, scales, "belong to quantized weights, in a format that this version does not read")
    if missing := sorted(wanted - set(index.tensors)):
        raise _fault(index, missing, "are missing")
    if extra:
        raise _fault(index, extra, "belong to no part of the model that the config describes")
    _check_unused_layers(index, key_map)


def _is_unused(name: str, key_map: KeyMap) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in key_map.unused)


def _check_unused_layers(index: TensorIndex, key_map: KeyMap) -> None:
    """Layers that no one runs are all there, as the config counts them, or none of them is."""
    layers = [pattern for pattern in key_map.unused if pattern.endswith(".*")]
    absent = [pattern for pattern in layers if not any(fnmatchcase(name, pattern) for name in index.tensors)]
    if absent and len(absent) < len(layers):
        raise CheckpointError(f"{index.folder}: the config counts layers that are not there: {some(absent)}")


def _check_dtypes(index: TensorIndex, key_map: KeyMap) -> None:
    """Weights are stored as floating-point numbers of 16 bits or more."""
    stored = [index.tensors[source] for entry in key_map.entries for source in entry.sources]
    if odd := [t for t in stored if not t.dtype.is_floating_point or t.dtype.itemsize < 2]:
        kinds = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in odd}))
        what = f"are stored as {kinds}: weights have to be bfloat16, float16, float32 or float64"
        raise _fault(index, [tensor.name for tensor in odd], what)


def _check_shape(entry: Entry, index: TensorIndex, shape: Shape) -> None:
    """The sources, one after another along axis 0, have the target's shape."""
    stored = [index.tensors[source].shape for source in entry.sources]
    if joined(stored) != shape:
        found = " + ".join(str(list(s)) for s in stored)
        raise CheckpointError(
            f"{index.folder}: {some(entry.sources)} has shape {found}, the config needs {list(shape)}"
        )


def _fault(index: TensorIndex, names: Collection[str], what: str) -> CheckpointError:
    return CheckpointError(f"{index.folder}: {len(names)} tensors {what}: {some(names)}")
