"""Writes `h3serve.json` beside a checkpoint that is known to be good, for the canary to compare with."""

from __future__ import annotations

from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.core.limits import Partition
from h3serve.weights.files.checkpoint_folder import ModelFolder
from h3serve.weights.formats.checksums import PROBED, Probe, Probes, key, write_probes
from h3serve.weights.formats.components import RECIPES
from h3serve.weights.formats.load import read_tensors
from h3serve.weights.formats.opened_component import open_component


def record(model: ModelFolder, rules: SizeRules = RELEASED_SIZES) -> None:
    """Take the probes of every network and keep them in each partition's folder, with its size rules.

    Every folder gets the transformers of all partitions, so that an exchanged one is called by its name.
    """
    transformers = {key("transformer", name): _probes(model, "transformer", name) for name in model.partitions}
    for name, place in model.partitions.items():
        others = {component: _probes(model, component, name) for component in RECIPES if component != "transformer"}
        write_probes(place.folder, transformers | others, rules)


def _probes(model: ModelFolder, name: str, partition: Partition) -> Probes:
    opened = open_component(model, name, partition)
    tensors = read_tensors(opened.index, opened.key_map, PROBED[name])
    return {tensor: Probe.take(tensors[tensor]) for tensor in PROBED[name]}
