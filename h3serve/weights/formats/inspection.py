"""What a checkpoint is, from its headers and a few tensors: the data behind `h3serve inspect`, and `h3serve.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.core.limits import Partition, Task
from h3serve.models.key_map import Layout
from h3serve.weights.files.checkpoint_folder import ModelFolder, SigmaShifts
from h3serve.weights.formats.checksums import CHECKED, Checksum, Checksums, key, write_checksums
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import precision_finding, read_tensors
from h3serve.weights.formats.opened_component import OpenedComponent, open_checkpoint, open_component
from h3serve.weights.formats.tokenizer_files import open_tokenizer
from h3serve.weights.formats.weight_checks import Finding, examine, sampled


@dataclass(frozen=True)
class ComponentReport:
    """One network on disk. `parameters` counts what the network uses, the rest what is stored."""

    name: str
    partition: Partition
    folder: Path
    files: int
    tensors: int
    parameters: int
    bytes: int
    dtypes: Mapping[str, int]  # safetensors' name without its prefix -> tensors
    unused: int  # stored tensors that the network has no use for
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Inspection:
    """A whole checkpoint."""

    root: Path
    layout: Layout
    partitions: Mapping[Partition, tuple[Task, ...]]
    shifts: Mapping[Partition, SigmaShifts]
    components: tuple[ComponentReport, ...]

    @property
    def verdict(self) -> str:
        """The worst finding's level: fault, warning, unknown or ok."""
        levels = {finding.level for component in self.components for finding in component.findings}
        return next(level for level in ("fault", "warning", "unknown", "ok") if level in levels)


def inspect_model(model: ModelFolder) -> Inspection:
    """Every network of every partition; CheckpointError if one is not whole.

    Headers of all files are read, and of the tensors only the few that checksums are compared with.
    """
    reports: dict[Path, ComponentReport] = {}
    for partition in model.partitions:
        networks = open_checkpoint(model, partition)
        open_tokenizer(model, partition, networks["text_encoder"].config)
        for opened in networks.values():
            folder = opened.index.folder
            if folder not in reports:  # the diffusers layout shares all but the transformers
                reports[folder] = inspect_component(opened)
    places = model.partitions.values()
    return Inspection(
        root=model.root,
        layout=model.layout,
        partitions={place.name: place.tasks for place in places},
        shifts={place.name: place.shifts for place in places},
        components=tuple(reports.values()),
    )


def inspect_component(opened: OpenedComponent) -> ComponentReport:
    """One network: what its headers said, and the few tensors that checksums are compared with."""
    index, key_map, shapes = opened.index, opened.key_map, opened.shapes
    wanted = {source for entry in key_map.entries for source in entry.sources}
    findings = examine(
        opened.name,
        opened.partition,
        tensors=read_tensors(index, key_map.entries, {*CHECKED[opened.name], *sampled(shapes)}),
        original=opened.original,
        recorded=opened.recorded,
    )
    return ComponentReport(
        name=opened.name,
        partition=opened.partition,
        folder=index.folder,
        files=len({tensor.file for tensor in index.tensors.values()}),
        tensors=len(index.tensors),
        parameters=sum(torch.Size(shape).numel() for shape in shapes.values()),
        bytes=index.total_bytes,
        dtypes=Counter(str(tensor.dtype).removeprefix("torch.") for tensor in index.tensors.values()),
        unused=len(set(index.tensors) - wanted),
        findings=(*findings, precision_finding(opened)),
    )


def record(model: ModelFolder, rules: SizeRules = RELEASED_SIZES) -> None:
    """Writes `h3serve.json` with the checksums of every network into each partition's folder, with its size rules.

    The checkpoint has to be known to be good: later loads are compared with it. Every folder gets the transformers
    of all partitions, so that an exchanged one is called by its name.
    """
    transformers = {key("transformer", name): _checksums(model, "transformer", name) for name in model.partitions}
    for name, place in model.partitions.items():
        others = {component: _checksums(model, component, name) for component in RECIPES if component != "transformer"}
        write_checksums(place.folder, transformers | others, rules)


def _checksums(model: ModelFolder, name: str, partition: Partition) -> Checksums:
    opened = open_component(model, name, partition)
    tensors = read_tensors(opened.index, opened.key_map.entries, CHECKED[name])
    return {tensor: Checksum.take(tensors[tensor]) for tensor in CHECKED[name]}
