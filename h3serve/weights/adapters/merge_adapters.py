"""Adapters merged into a checkpoint's transformer, in float32 arithmetic, and what rounding takes of them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.models.key_map import Entry, KeyMap
from h3serve.weights.adapters.open_adapter import Adapter
from h3serve.weights.adapters.updates import Replacement, Update
from h3serve.weights.files.checkpoint_folder import ModelFolder, open_folder
from h3serve.weights.files.save import stored_tensors
from h3serve.weights.files.tensor_index import TensorInfo
from h3serve.weights.formats.checksums import FILE, read_size_rules
from h3serve.weights.formats.inspection import record
from h3serve.weights.formats.load import read_tensors
from h3serve.weights.formats.opened_component import OpenedComponent, open_component

Strong = tuple[Update, float]  # an update and its strength


@dataclass(frozen=True)
class Merged:
    """What merging did."""

    tensors: int  # that changed
    lost: float  # share of the delta's norm that rounding to the stored dtype took, 0 to about 1


def merge_adapters(
    model: ModelFolder, partition: Partition, adapters: Sequence[tuple[Adapter, float]], out: Path
) -> Merged:
    """Writes a checkpoint like `model` with adapters merged into one partition's transformer, each at its strength.

    Of the original layout `out` holds that partition alone. One weight file is in memory at a time, and beside it one
    weight in float32. Strength 0 leaves the bits as they are. CheckpointError says what cannot be merged; then nothing
    is written.
    """
    if out.exists():
        raise CheckpointError(f"{out} is there already")
    opened = open_component(model, "transformer", partition)
    updates = _by_target(opened, adapters)
    root = model.partition(partition).folder if model.layout == "original" else model.root
    part = out.with_name(out.name + ".part")
    if part.exists():
        raise CheckpointError(f"{part} is there, left by a merge that was stopped: delete it")
    try:
        merged = _write(opened, updates, root, part)
        if (root / FILE).is_file():  # its checksums are of the base
            record(open_folder(part), read_size_rules(root))
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return merged


def merged_tensor(base: torch.Tensor, updates: Sequence[Strong]) -> torch.Tensor:
    """float32: the base and all deltas, each from the untouched base; our tensor, whole."""
    base = base.float()
    whole = base.clone()
    for update, strength in updates:
        rows = slice(update.first, update.first + update.rows)
        whole[rows] += strength * update.delta(base[rows])
    return whole


def _by_target(opened: OpenedComponent, adapters: Sequence[tuple[Adapter, float]]) -> dict[str, list[Strong]]:
    """The updates of every one of our tensors, checked; those of strength 0 are left out."""
    found: dict[str, list[Strong]] = {}
    for adapter, strength in adapters:
        where = adapter.file.path
        if not math.isfinite(strength):
            raise CheckpointError(f"{where}: strength {strength} is not a number")
        if adapter.needs:
            raise CheckpointError(f"{where} cannot be merged: it needs {', '.join(adapter.needs)}")
        for update in adapter.updates if strength else ():
            if update.target not in opened.shapes or not update.mergeable:
                raise CheckpointError(f"{where}: {update.target} cannot be merged")
            if not update.strength_linear and strength != 1:
                raise CheckpointError(f"{where} replaces {update.target}: its strength is 0 or 1, not {strength:g}")
            others = found.setdefault(update.target, [])
            if isinstance(update, Replacement) and any(isinstance(other, Replacement) for other, _ in others):
                raise CheckpointError(f"{where}: {update.target} is replaced by two adapters")
            others.append((update, strength))
    return found


def _write(opened: OpenedComponent, updates: Mapping[str, list[Strong]], root: Path, out: Path) -> Merged:
    """The whole folder, weight files of the transformer one by one."""
    files: dict[Path, list[TensorInfo]] = {}
    for info in opened.index.tensors.values():
        files.setdefault(info.file, []).append(info)
    inside = {file.relative_to(root) for file in files}

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if (Path(folder) / name).relative_to(root) in inside]

    shutil.copytree(root, out, ignore=ignored)
    touched = {source: entry for entry in opened.key_map.entries if entry.target in updates for source in entry.sources}
    meter = _Loss()
    for file, infos in files.items():
        with safe_open(file, framework="pt") as stored:
            tensors = {info.name: stored.get_tensor(info.name) for info in infos if info.name not in touched}
            header = stored.metadata()
        wanted = {touched[info.name].target: touched[info.name] for info in infos if info.name in touched}
        for name, value in _merged(opened, wanted.values(), updates, meter):
            if opened.index.tensors[name].file == file:
                tensors[name] = value
        save_file(tensors, out / file.relative_to(root), header)
    return Merged(len(updates), meter.share)


class _Loss:
    """Sums of squares of deltas and of what rounding took of them; a weight in two files counts twice in both."""

    def __init__(self) -> None:
        self.delta = self.lost = 0.0

    def add(self, base: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """One tensor's."""
        self.delta += float((exact - base.float()).double().square().sum())
        self.lost += float((exact - rounded.float()).double().square().sum())

    @property
    def share(self) -> float:
        """Of the norms, 0 where nothing changed."""
        return math.sqrt(self.lost / self.delta) if self.delta else 0.0


def _merged(
    opened: OpenedComponent, entries: Iterable[Entry], updates: Mapping[str, list[Strong]], meter: _Loss
) -> Iterator[tuple[str, torch.Tensor]]:
    """Stored tensors of the touched entries, merged, by the file's names and in its row order and dtype."""
    for entry in entries:
        base = read_tensors(opened.index, opened.key_map.entries, {entry.target})[entry.target]
        exact = merged_tensor(base, updates[entry.target])
        rounded = exact.to(base.dtype)
        if not torch.isfinite(rounded).all():
            raise CheckpointError(f"{entry.target} would no longer be finite in {base.dtype}: lower the strength")
        meter.add(base, exact, rounded)
        yield from stored_tensors({entry.target: rounded}, KeyMap((entry,))).items()
