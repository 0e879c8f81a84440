"""The one door to a checkpoint's networks: config, stored tensors and key map of each, checked against each other.

Whoever loads, places, inspects, sizes or updates a network takes an `OpenedComponent`; nobody else opens a config or a
weight file's header, so nothing can be loaded that was not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.models.key_map import KeyMap, Layout
from h3serve.weights.files.checkpoint_folder import Component, ModelFolder
from h3serve.weights.files.tensor_index import TensorIndex, read_index
from h3serve.weights.formats.checksums import Checksums, read_checksums
from h3serve.weights.formats.components import RECIPES, Recipe, build_on_meta
from h3serve.weights.formats.header_checks import Shape, check_stored

FORMATS = ("quantization_config", "quantization", "quant_method")  # keys by which a config names a quantized format


@dataclass(frozen=True)
class OpenedComponent:
    """One network of a checkpoint, known to be whole; nothing of its tensors has been read."""

    name: str
    partition: Partition
    layout: Layout
    config: Any
    index: TensorIndex
    key_map: KeyMap
    shapes: Mapping[str, Shape]  # of the network's tensors, by our names
    recorded: Mapping[str, Checksums]  # what `h3serve.json` knows of the weights, for their checks

    @property
    def recipe(self) -> Recipe:
        """How networks of this name are built and held."""
        return RECIPES[self.name]

    @property
    def original(self) -> KeyMap:
        """The key map that the original layout would have."""
        return self.recipe.key_map(self.config, "original")

    def build(self) -> nn.Module:
        """The network without memory."""
        return build_on_meta(self.recipe, self.config)

    def dtype_of(self, target: str, compute_dtype: torch.dtype) -> torch.dtype:
        """What our tensor `target` is held in beside a compute dtype."""
        return self.recipe.dtype_of(target, compute_dtype)


Opened = Mapping[str, OpenedComponent]  # every network of a partition, by name


def open_component(model: ModelFolder, name: str, partition: Partition) -> OpenedComponent:
    """A network's config and headers, and that they agree; CheckpointError says what does not.

    Names, shapes and dtypes of all stored tensors are looked at, and the sizes that the whole model shares.
    """
    recipe, component = RECIPES[name], model.component(name, partition)
    config = _read_config(recipe, component)
    for size, value in recipe.fixed.items():
        if (found := getattr(config, size)) != value:
            raise CheckpointError(f"{component.folder}: the config's {size} is {found!r}, MiniMax-H3 has {value!r}")
    key_map, shapes = _sizes(recipe, component, config, model.layout)
    index = read_index(component.weights)
    check_stored(index, key_map, shapes)
    recorded = read_checksums(model.partition(partition).folder)
    return OpenedComponent(name, partition, model.layout, config, index, key_map, shapes, recorded)


def open_checkpoint(model: ModelFolder, partition: Partition) -> dict[str, OpenedComponent]:
    """Every network of a partition, that fit together: the last one's fault is found before the first loads."""
    opened = {name: open_component(model, name, partition) for name in RECIPES}
    wanted, width = opened["transformer"].config.text_dim, opened["text_encoder"].config.width
    if wanted != width:
        raise CheckpointError(
            f"{model.root}: the text encoder gives {width} features a token, the transformer takes {wanted} (text_dim)"
        )
    return opened


def _read_config(recipe: Recipe, component: Component) -> Any:
    if named := [key for key in FORMATS if key in component.config]:
        raise CheckpointError(f"{component.folder}: the config names a quantized format ({named[0]}), none is read")
    try:
        return recipe.read_config(component.config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{component.folder}: the config is damaged: {_said(error)}") from error


def _sizes(recipe: Recipe, component: Component, config: Any, layout: Layout) -> tuple[KeyMap, dict[str, Shape]]:
    """The key map and the network's shapes; a network that cannot be built has a config that says nonsense."""
    try:
        shapes = {name: tuple(value.shape) for name, value in build_on_meta(recipe, config).state_dict().items()}
        return recipe.key_map(config, layout), shapes
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{component.folder}: no network has the config's sizes: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
