"""The one door to an adapter: any file of any dialect becomes a list of typed updates, or one sentence.

Names, shapes and dtypes of all tensors are judged from the header before a byte of a tensor is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.weights.adapters.adapter_alpha import KNOWN, AlphaRule, alpha_rule
from h3serve.weights.adapters.adapter_file import AdapterFile, open_adapter_file
from h3serve.weights.adapters.adapter_grammar import (
    FLAT_PREFIXES,
    Dialect,
    QkvRows,
    common_prefix,
    dialect_of,
    taken_apart,
)
from h3serve.weights.adapters.adapter_layers import GATE, AdapterLayers, adapter_layers
from h3serve.weights.adapters.build_updates import AdapterReader, build_updates
from h3serve.weights.adapters.layer_tensors import LayerTensors
from h3serve.weights.adapters.updates import HeadBank, LowRank, Scale, Update
from h3serve.weights.files.tensor_index import TensorInfo, some
from h3serve.weights.formats.row_order import overall, qkv_order

DECLARED_ROWS: dict[str, QkvRows] = {"grouped": "interleaved", "interleaved": "interleaved", "stacked": "stacked"}
ADDED_NEEDS = {
    "endpoint_time_embedder": "two-time conditioning (an endpoint time embedder)",
    GATE: "sparse attention with trained gates",
}
SMALLER_BASES = ("pruned", "int8", "fp8", "int4", "nvfp4", "w4a", "gguf")  # words for bases that lost something


@dataclass(frozen=True)
class Adapter:
    """What a file does to the transformer, and what is known of it."""

    file: AdapterFile
    dialect: str
    qkv_rows: str | None  # row order of fused q, k, v and what decided it; None: the file has none
    updates: tuple[Update, ...]
    layers: int  # of the transformer that it changes
    layers_there: int  # that the transformer has
    trained_on: str | None
    partition: Partition | None  # that it was made for, where that is declared
    warnings: tuple[str, ...]

    @property
    def scales(self) -> Counter[Scale]:
        """Rank, alpha and its source, and of how many updates."""
        return Counter(scale for update in self.updates if (scale := update.scale_of))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes beside its updates: a program that lacks it may not run or merge the adapter."""
        needs = ["an output head for every interval of its schedule"] * any(
            isinstance(u, HeadBank) for u in self.updates
        )
        return (*needs, *(need for word, need in ADDED_NEEDS.items() if any(word in u.target for u in self.updates)))


def open_adapter(
    path: Path,
    config: TransformerConfig,
    *,
    partition: Partition | None = None,
    qkv_layout: QkvRows | None = None,
    alpha: float | None = None,
) -> Adapter:
    """Reads an adapter for a transformer of this size; CheckpointError names file, tensor, what is there and is needed.

    `partition` is that of the base, None if it is not known. `qkv_layout` and `alpha` stand above what the file says.
    Every tensor of the file is used, or none is.
    """
    file, known = open_adapter_file(path), adapter_layers(config)
    prefix = common_prefix(file.tensors)
    groups = _grouped(file, prefix, known)
    bare = [name.removeprefix(prefix) for name in file.tensors]
    dialect = dialect_of(prefix, bare, file.header)
    warnings = [*_partition_warnings(file, prefix, partition), *_base_warnings(file)]
    rows, why = _qkv_rows(file, dialect, qkv_layout)
    fused = [group.layer for group in groups if group.layer.from_interleaved]
    if qkv_layout and not fused:
        raise CheckpointError(
            f"{path}: qkv_layout {qkv_layout} is given, but the file has no layer of q, k and v in one"
        )
    if rows == "interleaved":
        groups = [
            replace(g, layer=replace(g.layer, reorder=g.layer.from_interleaved or g.layer.reorder)) for g in groups
        ]
    rule = alpha_rule(path, file.header, sidecar=dialect.sidecar, explicit=alpha)
    warnings += [sentence] if (sentence := _alpha_warning(rule, groups)) else []
    updates = _updates(file, groups, rule)
    warnings += _findings(path, updates, config)
    touched = {update.path for update in updates}
    return Adapter(
        file,
        dialect.name,
        f"{rows} ({why})" if fused else None,
        updates,
        len(touched & known.paths),
        len(known.paths),
        file.trained_on,
        declared[0] if (declared := file.declared_partition(prefix)) else None,
        tuple(warnings),
    )


def _grouped(file: AdapterFile, prefix: str, known: AdapterLayers) -> list[LayerTensors]:
    """The tensors of every layer; those that no rule knows are named."""
    spelled = known.flat if prefix.endswith(FLAT_PREFIXES) else known.dotted
    tensors: dict[str, dict[str, TensorInfo]] = {}
    slots: dict[str, str] = {}
    unknown, twice = [], ""
    for name, info in file.tensors.items():
        parts = taken_apart(name.removeprefix(prefix))
        if parts is None or parts.layer not in spelled:
            unknown.append(name)
            continue
        slots |= {parts.slot: name} if parts.slot else {}
        if parts.role in (of_layer := tensors.setdefault(parts.layer, {})):
            twice = f"{name} and {of_layer[parts.role].name}"
        of_layer[parts.role] = info
    if len(slots) > 1:
        raise CheckpointError(f"{file.path} holds several adapters, {some(sorted(slots))}: keep one of them in a file")
    if twice:
        raise CheckpointError(f"{file.path}: {twice} say the same of one layer")
    if unknown:
        all_of = (
            "none" if len(unknown) == len(file.tensors) else f"{len(unknown)} of {len(file.tensors)} tensors do not"
        )
        what = "of its tensors belongs" if all_of == "none" else "belong"
        raise CheckpointError(f"{file.path}: {all_of} {what} to a layer of this transformer: {some(unknown)}")
    return [LayerTensors(name, spelled[name], by_role) for name, by_role in tensors.items()]


def _qkv_rows(file: AdapterFile, dialect: Dialect, given: QkvRows | None) -> tuple[QkvRows, str]:
    if given:
        return given, "as given"
    if (told := file.header.get("qkv_layout")) is not None:
        if told not in DECLARED_ROWS:
            raise CheckpointError(f"{file.path}: the header's qkv_layout is {told!r}, not {', '.join(DECLARED_ROWS)}")
        return DECLARED_ROWS[told], "the header says so"
    return dialect.qkv_rows, f"as {dialect.name} writes it"


def _partition_warnings(file: AdapterFile, prefix: str, partition: Partition | None) -> list[str]:
    """An adapter of the other partition is refused where that is declared; a file's name makes a warning."""
    named = file.named_partition
    declared = file.declared_partition(prefix) or (named if KNOWN.fullmatch(file.path.stem) else None)
    if partition and declared and declared[0] != partition:
        raise CheckpointError(f"{file.path} is an adapter for {declared[0]} ({declared[1]}), the base is {partition}")
    if partition and named and named[0] != partition:
        return [f"{file.path.name} may be meant for {named[0]} ({named[1]}), the base is {partition}"]
    return []


def _base_warnings(file: AdapterFile) -> list[str]:
    said = (file.trained_on or "").lower()
    if words := [word for word in SMALLER_BASES if word in said]:
        return [
            f"{file.path.name} was trained on a base that is not the full one ({', '.join(words)}): {file.trained_on}"
        ]
    return []


def _alpha_warning(rule: AlphaRule, groups: Sequence[LayerTensors]) -> str | None:
    return None if all("alpha" in group.tensors for group in groups if "a" in group.tensors) else rule.warning()


def _updates(file: AdapterFile, groups: Sequence[LayerTensors], rule: AlphaRule) -> tuple[Update, ...]:
    """All updates: first every layer is judged by its header entries, then tensors are read."""
    for group in groups:
        group.check(file.path)
    updates: list[Update] = []
    with AdapterReader(file.path) as reader:
        for group in groups:
            updates += build_updates(group, reader, rule)
    _check_overlaps(file.path, updates)
    return tuple(updates)


def _check_overlaps(path: Path, updates: Sequence[Update]) -> None:
    """Two spellings of one layer in one file: nobody means the sum."""
    seen: dict[str, list[Update]] = {}
    for update in updates:
        for other in seen.setdefault(update.target, []):
            if update.first < other.first + max(other.rows, 1) and other.first < update.first + max(update.rows, 1):
                raise CheckpointError(f"{path} changes {update.target} twice, under two names")
        seen[update.target].append(update)


def _findings(path: Path, updates: Sequence[Update], config: TransformerConfig) -> list[str]:
    """What the read tensors make one doubt."""
    found = []
    if idle := [update.target for update in updates if update.is_no_op]:
        whole = "changes nothing" if len(idle) == len(updates) else f"changes nothing in {len(idle)} layers"
        found.append(f"{path.name} {whole}: factors are all zero: {some(idle)}")
    heads = config.num_attention_heads
    fused = [u for u in updates if isinstance(u, LowRank) and u.rows == 3 * config.inner_dim]
    opinions = [qkv_order(update.b, heads=heads) for update in fused]
    if overall([opinion for opinion, _ in opinions]) == "against":
        found.append(f"{path.name}: {opinions[0][1]} after reordering: if results are noise, give qkv_layout")
    return found
