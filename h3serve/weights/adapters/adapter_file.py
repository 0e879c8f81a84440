"""An adapter's file before a tensor is read: names, shapes, dtypes and what its header says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.weights.files.tensor_index import TensorInfo, read_header_and_metadata

# What a header may say of the base that an adapter was trained on.
TRAINED_ON = (
    "base_model",
    "base_model_name_or_path",
    "ss_sd_model_name",
    "ss_base_model_version",
    "modelspec.architecture",
    "compatible_subfolders",
)
PARTITION_KEYS = (*TRAINED_ON, "tasks", "partition", "model_variant")
# Words for a partition, in values of a header and in names of files.
_PARTITION = {
    "fl2va": re.compile(r"fl2va?(?![a-z0-9])|(?<![a-z0-9])t2va(?![a-z0-9])", re.IGNORECASE),
    "ref2va": re.compile(r"ref2va?(?![a-z0-9])|transformer_ref", re.IGNORECASE),
}
ROUTES = {"transformer_ref.": "ref2va"}  # prefix of all names -> the partition that it means


@dataclass(frozen=True)
class AdapterFile:
    """A safetensors file's tensors and header."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    header: Mapping[str, str]

    @property
    def trained_on(self) -> str | None:
        """What the header says of the base that it was trained on."""
        told = [f"{key} {self.header[key]}" for key in TRAINED_ON if key in self.header]
        return ", ".join(told) or None

    def declared_partition(self, prefix: str) -> tuple[Partition, str] | None:
        """The one partition that names or header declare it for, and what says so; None if neither or both."""
        for route, partition in ROUTES.items():
            if route in prefix:
                return partition, f"its tensors begin with {route}"  # type: ignore[return-value]
        said = " ".join(self.header[key] for key in PARTITION_KEYS if key in self.header)
        return _only(said, "its header says so")

    @property
    def named_partition(self) -> tuple[Partition, str] | None:
        """The one partition that the file's name speaks of: a hint, anyone may name a file."""
        return _only(self.path.stem, "its name says so")


def _only(text: str, why: str) -> tuple[Partition, str] | None:
    found = [name for name, word in _PARTITION.items() if word.search(text)]
    return (found[0], why) if len(found) == 1 else None  # type: ignore[return-value]


def open_adapter_file(path: Path) -> AdapterFile:
    """Reads a file's header; CheckpointError says in one sentence why it is no safetensors file, or a damaged one."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not an adapter file (*.safetensors)")
    listed, told = read_header_and_metadata(path)
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        raise CheckpointError(f"{path}: the header's __metadata__ is not an object of strings")
    if not listed:
        raise CheckpointError(f"{path} holds no tensors")
    return AdapterFile(path, {tensor.name: tensor for tensor in listed}, told)
