"""What a model folder holds: which layout, which partitions, and the files of every component.

Three kinds of folder are known (spec/checkpoint.md 1.1): the original release with `FL2VA/` and/or
`Ref2VA/`, one of those two by itself, and the diffusers layout. Where one folder holds the original
and the diffusers layout, as the release does, the original one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from h3serve.core.errors import CheckpointError, RequestError
from h3serve.core.limits import LIMITS, PARTITION_OF, Partition, Task
from h3serve.core.model_name import PARTITION_FOLDERS, TRANSFORMERS
from h3serve.models.key_map import Layout
from h3serve.weights.files.tensor_index import read_json

MARKER = "_minimax_h3"  # the release's own block of model_index.json
SCHEMA_VERSION = 1
DISTILLED = ("dmd_denoising_steps", "pdd_fused_heads")  # derived releases this package cannot run


@dataclass(frozen=True)
class SigmaShifts:
    """Default flow shifts of the two schedules (`sigma_shift_scales`)."""

    video: float
    audio: float


@dataclass(frozen=True)
class PartitionFolder:
    """Where one partition's components are."""

    name: Partition
    folder: Path
    transformer: str  # name of the subfolder that holds its transformer
    shifts: SigmaShifts

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tasks_of(self.name)


@dataclass(frozen=True)
class Component:
    """One network or tokenizer on disk: its parsed config and the folder of its weight files."""

    name: str
    folder: Path
    config: dict[str, Any]
    weights: Path


@dataclass(frozen=True)
class ModelFolder:
    """A whole checkpoint on disk. Nothing of a component is opened before `component` asks for it."""

    root: Path
    layout: Layout
    partitions: Mapping[Partition, PartitionFolder]

    def partition_for(self, task: Task) -> Partition:
        """The partition that does this task; RequestError if its weights are not here."""
        wanted = PARTITION_OF[task]
        if wanted not in self.partitions:
            does = ", ".join(t for name in self.partitions for t in tasks_of(name))
            raise RequestError("task", task, f"the model {self.root} has no {wanted} weights; it does {does}")
        return wanted

    def partition(self, name: Partition) -> PartitionFolder:
        """Where a partition is; CheckpointError says what is here instead."""
        if name not in self.partitions:
            here = ", ".join(self.partitions)
            places = f"{_original_name(name)}/ or {TRANSFORMERS[name]}/"
            raise CheckpointError(f"{self.root} holds the {here} weights only; {name} weights would be in {places}")
        return self.partitions[name]

    def component(self, name: str, partition: Partition) -> Component:
        """Config and weight folder of a component; CheckpointError names the missing file."""
        place = self.partition(partition)
        if name == "transformer":
            folder = place.folder / place.transformer
        else:
            vae = self.layout == "diffusers" and name == "video_vae"
            folder = place.folder / ("vae" if vae else name)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is missing: the checkpoint has no {name}")
        nested = self.layout == "original" and name == "video_vae"  # the weights are a level deeper
        return Component(name, folder, _config(self.layout, name, folder), folder / "source" if nested else folder)


def open_folder(root: Path) -> ModelFolder:
    """What is in a local folder; CheckpointError if it is no MiniMax-H3 checkpoint."""
    root = root.expanduser()
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a folder")
    if found := _original_partitions(root):
        return ModelFolder(root, "original", MappingProxyType(found))
    if found := _diffusers_partitions(root):
        return ModelFolder(root, "diffusers", MappingProxyType(found))
    raise CheckpointError(
        f"{root} is not a MiniMax-H3 checkpoint: it has neither FL2VA/ or Ref2VA/, "
        f"nor a model_index.json with {MARKER}, nor transformer/ or transformer_ref/"
    )


def tasks_of(partition: Partition) -> tuple[Task, ...]:
    """The tasks that a partition's weights do."""
    return tuple(task for task, name in PARTITION_OF.items() if name == partition)


def is_original_partition(folder: Path) -> bool:
    """Whether a folder is one self-contained partition of the original layout."""
    index = folder / "model_index.json"
    return index.is_file() and MARKER in read_json(index)


def _original_partitions(root: Path) -> dict[Partition, PartitionFolder]:
    if is_original_partition(root):
        only = _original_partition(root, named=PARTITION_FOLDERS.get(root.name))
        return {only.name: only}
    found = {}
    for folder_name, partition in PARTITION_FOLDERS.items():
        if (root / folder_name).is_dir():
            found[partition] = _original_partition(root / folder_name, named=partition)
    return found


def _original_partition(folder: Path, *, named: Partition | None) -> PartitionFolder:
    """The release's block, checked: a partition in the other's folder would load without a word."""
    index = folder / "model_index.json"
    marker = read_json(index).get(MARKER)
    if not isinstance(marker, dict) or marker.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(f"{index} has no {MARKER} block of schema_version {SCHEMA_VERSION}")
    partition = marker.get("partition")
    if not isinstance(partition, str) or partition not in TRANSFORMERS:
        raise CheckpointError(f"{index}: partition is {partition!r}, it must be fl2va or ref2va")
    if named is not None and partition != named:
        raise CheckpointError(f"{index} says partition {partition}, but its folder is {folder.name}")
    if marker.get("tasks") != list(tasks_of(partition)):
        raise CheckpointError(f"{index}: tasks {marker.get('tasks')} do not belong to {partition}")
    if extra := [key for key in DISTILLED if key in marker]:
        raise CheckpointError(f"{index}: a distilled release ({extra[0]}) is not supported")
    shifts = marker.get("sigma_shift_scales")
    shifts = shifts if isinstance(shifts, dict) else {}
    return PartitionFolder(partition, folder, "transformer", _shifts(shifts, index))


def _diffusers_partitions(root: Path) -> dict[Partition, PartitionFolder]:
    names = [name for name, folder in TRANSFORMERS.items() if (root / folder).is_dir()]
    if not names:
        return {}
    files = {kind: root / kind / "scheduler_config.json" for kind in ("scheduler", "audio_scheduler")}
    values = [read_json(file).get("shift") for file in files.values()]
    shifts = _shifts(dict(zip(("video", "audio"), values, strict=True)), root / "scheduler")
    return {name: PartitionFolder(name, root, TRANSFORMERS[name], shifts) for name in names}


def _shifts(values: Mapping[str, Any], file: Path) -> SigmaShifts:
    for kind in ("video", "audio"):
        value = values.get(kind)
        low, high = LIMITS.min_shift, LIMITS.max_shift
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            allowed = f"a number from {low:g} to {high:g}"
            raise CheckpointError(f"{file}: the {kind} sigma shift is {value!r}, not {allowed}")
    return SigmaShifts(float(values["video"]), float(values["audio"]))


def _config(layout: Layout, name: str, folder: Path) -> dict[str, Any]:
    """The component's config as one dict; the original VAEs keep theirs in two files each."""
    if name == "tokenizer":
        return read_json(folder / "tokenizer_config.json")
    if name == "processor":
        return read_json(folder / "preprocessor_config.json")
    config = read_json(folder / "config.json")
    if layout == "original" and name == "video_vae":
        return {**read_json(folder / "source" / "config.json"), **config}
    if layout == "original" and name == "audio_vae":
        return {**config, **read_json(folder / "metadata.json")}
    return config


def _original_name(partition: Partition) -> str:
    return next(folder for folder, name in PARTITION_FOLDERS.items() if name == partition)
