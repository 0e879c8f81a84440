"""Level 3: modulation tables on disk, one safetensors file per schedule (spec/checkpoint.md 1.5).

Tensors and metadata are those of the published format, version "2"; beside them every step's checksum, and which
weights and which machinery made the file. Without those a file cannot be trusted to the bit and is refused.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h3serve.core.errors import CheckpointError
from h3serve.runtime.adaln.modulation_tables import (
    Key,
    Pages,
    TableShape,
    count_of,
    distinct,
    key_of,
    schedule_digest,
    timesteps_of,
)
from h3serve.system.disk_files import trim, whole_file

log = logging.getLogger(__name__)

FORMAT = "2"


@dataclass(frozen=True)
class Origin:
    """What the tables in a file depend on: a file is used only where all of it is equal."""

    variant: str  # partition: fl2va or ref2va
    identity: str
    maker: str
    shape: TableShape
    dtype: torch.dtype

    @property
    def metadata(self) -> dict[str, str]:
        """The same as the metadata of a file."""
        return {
            "format_version": FORMAT,
            "model_variant": self.variant,
            "identity": self.identity,
            "maker": self.maker,
            "dtype": str(self.dtype).removeprefix("torch."),
        }


@dataclass(frozen=True)
class Sidecar:
    """An opened file: which keys it has, and at which row."""

    path: Path
    keys: Mapping[Key, int]  # key -> row of the file's tensors
    checksums: tuple[int, ...]

    def read(self, key: Key, pages: Pages, shape: TableShape) -> None:
        """Copies a key's tables into its pages; CheckpointError if their checksum is not the file's."""
        row, sum_ = self.keys[key], 0
        try:
            with safe_open(self.path, framework="pt") as file:
                for i, page in enumerate(pages):
                    blocks, final = shape.split(page)
                    blocks.copy_(file.get_slice("block_params")[row, i])
                    final.copy_(file.get_slice("final_params")[row, i])
                    sum_ = checksum(page, sum_)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from None
        if sum_ != self.checksums[row]:
            raise CheckpointError(f"{self.path} is damaged: its checksum does not fit")


def checksum(page: torch.Tensor, start: int = 0) -> int:
    """CRC-32 of a page's bytes, continued from `start`."""
    return zlib.crc32(page.view(torch.uint8).numpy().data, start)


def read_sidecar(path: Path, origin: Origin) -> Sidecar:
    """Opens a file that fits `origin`; CheckpointError says what does not fit."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            for name, wanted in origin.metadata.items():
                if metadata.get(name) != wanted:
                    found = metadata.get(name, "nothing")
                    raise CheckpointError(f"{path} is for another model: its {name} is {found}, not {wanted}")
            times, lengths = file.get_tensor("plan_timesteps"), file.get_tensor("plan_lengths")
            blocks = file.get_slice("block_params").get_shape()
            final = file.get_slice("final_params").get_shape()
            sums = file.get_tensor("plan_checksums").tolist()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    plans, width = times.shape
    shape = origin.shape
    if blocks != [plans, width, shape.layers, shape.block] or final != [plans, width, shape.final]:
        raise CheckpointError(f"{path} holds tables of another size: {blocks} and {final}")
    keys = {
        key_of(row[:length].numpy()): i for i, (row, length) in enumerate(zip(times, lengths.tolist(), strict=True))
    }
    return Sidecar(path, keys, tuple(sums))


class SidecarFolder:
    """The sidecars of one model; the least recently used ones are deleted where the folder gets too large."""

    def __init__(self, folder: Path, origin: Origin, *, limit_bytes: int) -> None:
        self.folder, self.origin, self._limit = folder, origin, limit_bytes
        self._files: dict[Path, Sidecar | None] = {}
        self.damaged = 0

    def find(self, key: Key) -> Sidecar | None:
        """A file that has the key, or None; new files of other processes are seen."""
        self._look()
        return next((s for s in self._files.values() if s is not None and key in s.keys), None)

    def read(self, sidecar: Sidecar, key: Key, pages: Pages) -> bool:
        """Fills a key's pages; returns False if the file turned out damaged, and deletes it."""
        try:
            sidecar.read(key, pages, self.origin.shape)
        except CheckpointError as error:
            log.warning("%s; it is deleted and made anew", error)
            self.damaged += 1
            sidecar.path.unlink(missing_ok=True)
            self._files.pop(sidecar.path, None)
            return False
        with suppress(FileNotFoundError):  # another key of it was found damaged meanwhile
            os.utime(sidecar.path)
        return True

    def listing(self) -> list[tuple[Path, Sidecar | CheckpointError]]:
        """Every file of the folder: opened, or why it is not used."""
        files = sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []
        return [(path, _opened(path, self.origin)) for path in files]

    def write(self, keys: Sequence[Key], fill: Callable[[Key, Pages], None]) -> Path:
        """Writes a file with these keys, whole or not at all; `fill` writes a key's pages."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{schedule_digest(keys)}.safetensors"
        with whole_file(path, sync=False) as part:
            save_file(_tensors(distinct(keys), self.origin, fill), part, self.origin.metadata)
        trim(self.folder.glob("*.safetensors"), self._limit, keep=path)
        self._files.pop(path, None)
        return path

    def _look(self) -> None:
        found = set(self.folder.glob("*.safetensors")) if self.folder.is_dir() else set()
        self._files = {path: known for path, known in self._files.items() if path in found}
        for path in sorted(found - set(self._files)):
            opened = _opened(path, self.origin)
            if isinstance(opened, CheckpointError):
                log.warning("%s; it is not used", opened)
            self._files[path] = None if isinstance(opened, CheckpointError) else opened


def _opened(path: Path, origin: Origin) -> Sidecar | CheckpointError:
    try:
        return read_sidecar(path, origin)
    except CheckpointError as error:
        return error


def _tensors(keys: Sequence[Key], origin: Origin, fill: Callable[[Key, Pages], None]) -> dict[str, Any]:
    shape, width = origin.shape, max(map(count_of, keys))
    times = torch.zeros(len(keys), width)
    blocks = torch.zeros(len(keys), width, shape.layers, shape.block, dtype=origin.dtype)
    final = torch.zeros(len(keys), width, shape.final, dtype=origin.dtype)
    pages = [torch.empty(shape.values, dtype=origin.dtype) for _ in range(width)]
    sums = torch.zeros(len(keys), dtype=torch.int64)
    for row, key in enumerate(keys):
        count = count_of(key)
        times[row, :count] = timesteps_of(key)
        fill(key, pages[:count])
        sum_ = 0
        for i, page in enumerate(pages[:count]):
            from_blocks, from_final = shape.split(page)
            blocks[row, i].copy_(from_blocks)
            final[row, i].copy_(from_final)
            sum_ = checksum(page, sum_)
        sums[row] = sum_
    return {
        "plan_timesteps": times,
        "plan_lengths": torch.tensor([count_of(key) for key in keys]),
        "block_params": blocks,
        "final_params": final,
        "plan_checksums": sums,
    }
