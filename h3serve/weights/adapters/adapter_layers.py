"""Which rows of which of our weights a layer name of an adapter file means, in every spelling.

The names and row orders are those of the transformer's own key maps: an adapter names the layers of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from h3serve.models.key_map import Layout, Reorder
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.weights.formats.components import RECIPES, build_on_meta

WEIGHT, BIAS = ".weight", ".bias"
LAYOUTS: tuple[Layout, ...] = ("original", "diffusers")
# Layers that few-step releases add to the network: (name in a file, our layer, the layer whose shape it has or None).
ADDED = (
    (
        "endpoint_time_embedder.linear_1",
        "modulation.endpoint_time_embedder.proj_in",
        "modulation.time_embedder.proj_in",
    ),
    (
        "endpoint_time_embedder.linear_2",
        "modulation.endpoint_time_embedder.proj_out",
        "modulation.time_embedder.proj_out",
    ),
)
GATE = "attn.to_gate_compress"  # of every main block, in both spellings; its shape is the release's own


@dataclass(frozen=True)
class Layer:
    """A linear layer as a file names it: `rows` rows of our weight `<path>.weight`, from row `first` on."""

    path: str
    first: int
    rows: int  # 0 where only the file knows
    columns: int
    has_bias: bool
    reorder: Reorder | None = None  # rows of the file -> ours
    from_interleaved: Reorder | None = None  # the same, of a file whose q, k and v are grouped per head; fused QKV only
    is_added: bool = False  # the base has no such layer

    @property
    def weight(self) -> str:
        """Our name of the weight."""
        return self.path + WEIGHT

    @property
    def bias(self) -> str:
        """Our name of the bias."""
        return self.path + BIAS


@dataclass(frozen=True)
class AdapterLayers:
    """Every layer of a transformer of one size that an adapter can name."""

    config: TransformerConfig
    layout_names: Mapping[Layout, Mapping[str, Layer]]  # dotted names of each layout
    added: Mapping[str, Layer]

    @cached_property
    def dotted(self) -> dict[str, Layer]:
        """Name with dots -> layer, both layouts."""
        return {**self.layout_names["original"], **self.layout_names["diffusers"], **self.added}

    @cached_property
    def flat(self) -> dict[str, Layer]:
        """Name whose dots became underscores -> layer, both layouts."""
        return {name.replace(".", "_"): layer for name, layer in self.dotted.items()}

    @cached_property
    def paths(self) -> frozenset[str]:
        """Our own linear layers."""
        return frozenset(layer.path for layer in self.layout_names["original"].values())


@lru_cache(maxsize=2)  # a network is built on meta for it, and who converts needs what opening needed
def adapter_layers(config: TransformerConfig) -> AdapterLayers:
    """The layers of a transformer of this size, by the names of both layouts."""
    recipe = RECIPES["transformer"]
    shapes = {name: tuple(value.shape) for name, value in build_on_meta(recipe, config).state_dict().items()}
    found: dict[Layout, dict[str, Layer]] = {}
    for layout in LAYOUTS:
        found[layout] = {}
        for entry in recipe.key_map(config, layout).entries:
            shape = shapes[entry.target]
            if len(shape) != 2:
                continue
            path, count = entry.target.removesuffix(WEIGHT), len(entry.sources)
            rows, has_bias = shape[0] // count, path + BIAS in shapes
            for number, source in enumerate(entry.sources):
                grouped = entry.reorder if path.endswith("qkv_proj") else None
                plain = None if grouped else entry.reorder
                layer = Layer(path, number * rows, rows, shape[1], has_bias, plain, grouped)
                found[layout][source.removesuffix(WEIGHT)] = layer
    return AdapterLayers(config, found, dict(_added(config, found["original"])))


def _added(config: TransformerConfig, original: Mapping[str, Layer]) -> Iterator[tuple[str, Layer]]:
    by_path = {layer.path: layer for layer in original.values()}
    for name, path, like in ADDED:
        yield name, replace(by_path[like], path=path, is_added=True)
    for number in range(config.num_layers):
        gate = Layer(f"transformer.blocks.{number}.{GATE}", 0, 0, config.hidden_size, True, is_added=True)
        yield f"blocks.{number}.{GATE}", gate
        yield f"transformer_blocks.{number}.{GATE}", gate
