"""What a checkpoint is, from its headers and a few tensors: the data behind `h3serve inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from h3serve.core.tasks import Partition, Task
from h3serve.models.keymap import Layout
from h3serve.weights.canary import Finding, examine, sampled
from h3serve.weights.components import RECIPES, build_on_meta, precision_finding
from h3serve.weights.index import read_index
from h3serve.weights.layout import ModelFolder, SigmaShifts
from h3serve.weights.load import check_names, check_shape, read_tensors
from h3serve.weights.probes import PROBED, read_probes


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

    Headers of all files are read, and of the tensors only the few that the canary looks at.
    """
    reports: dict[Path, ComponentReport] = {}
    for partition in model.partitions:
        for name in RECIPES:
            folder = model.component(name, partition).weights
            if folder not in reports:  # the diffusers layout shares all but the transformers
                reports[folder] = inspect_component(model, name, partition)
    places = model.partitions.values()
    return Inspection(
        root=model.root,
        layout=model.layout,
        partitions={place.name: place.tasks for place in places},
        shifts={place.name: place.shifts for place in places},
        components=tuple(reports.values()),
    )


def inspect_component(model: ModelFolder, name: str, partition: Partition) -> ComponentReport:
    """One network: headers of its files, and the few tensors that the canary looks at."""
    recipe, component = RECIPES[name], model.component(name, partition)
    config = recipe.read_config(component.config)
    index, key_map = read_index(component.weights), recipe.key_map(config, model.layout)
    shapes = {n: tuple(t.shape) for n, t in build_on_meta(recipe, config).state_dict().items()}
    check_names(index, key_map)
    for entry in key_map.entries:
        check_shape(entry, index, shapes[entry.target])
    wanted = {source for entry in key_map.entries for source in entry.sources}
    findings = examine(
        name,
        partition,
        tensors=read_tensors(index, key_map, {*PROBED[name], *sampled(shapes)}),
        original=recipe.key_map(config, "original"),
        recorded=read_probes(model.partition(partition).folder),
    )
    return ComponentReport(
        name=name,
        partition=partition,
        folder=component.weights,
        files=len({tensor.file for tensor in index.tensors.values()}),
        tensors=len(index.tensors),
        parameters=sum(torch.Size(shape).numel() for shape in shapes.values()),
        bytes=index.total_bytes,
        dtypes=Counter(str(tensor.dtype).removeprefix("torch.") for tensor in index.tensors.values()),
        unused=len(set(index.tensors) - wanted),
        findings=(*findings, precision_finding(index, key_map, recipe)),
    )
