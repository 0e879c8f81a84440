"""What `h3serve.json` beside the weights says: a few known values per component, and the pixel sizes.

The values tell what random or trained weights alone cannot: that rows are in the right order and that a
partition holds its own weights. `inspection.record` writes them for a checkpoint that is known to be good.
The sizes are those a checkpoint was made for, where they are not the released ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from h3serve.core.errors import CheckpointError
from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.models.key_map import KeyMap, Reorder, swap_halves
from h3serve.weights.files.tensor_index import read_json

FILE = "h3serve.json"  # its field `probes` holds the checksums
SCHEMA_VERSION = 1
COLUMNS = 4  # values taken of each row
SIZE_RULES = "size_rules"

# Fused tensors first: their row order is what can go wrong.
CHECKED: dict[str, tuple[str, ...]] = {
    "transformer": (
        "transformer.blocks.0.attn.qkv_proj.weight",
        "transformer.blocks.0.mlp.fc1.weight",
        "transformer.token_refiner.blocks.0.attn.qkv_proj.weight",
        "transformer.token_refiner.blocks.0.mlp.fc1.weight",
        "transformer.final_layer.video_out.weight",
    ),
    "text_encoder": ("model.language_model.layers.49.self_attn.o_proj.weight", "model.visual.pos_embed.weight"),
    "video_vae": (
        "decoder.transformer_blocks.0.attn.to_qkv.weight",
        "decoder.transformer_blocks.0.attn.to_qkv.bias",
        "decoder.transformer_blocks.0.ff.w1.weight",
        "decoder.transformer_blocks.0.ff.w1.bias",
        "quant_conv.weight",
    ),
    "audio_vae": ("decoder.conv_pre.weight_v", "pre_block.attn.qkv.weight"),
}


@dataclass(frozen=True)
class Checksum:
    """Leading values of a few rows of one tensor, in our row order."""

    rows: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]  # float32, exact

    @classmethod
    def take(cls, tensor: torch.Tensor) -> Checksum:
        """Takes rows spread over the thirds and halves of a tensor, where fused parts begin."""
        count = len(tensor)
        rows = tuple(sorted({0, 1, count // 3, count // 2, 2 * count // 3, count - 1} & set(range(count))))
        return cls(rows, tuple(tuple(row) for row in _head(tensor, rows).float().tolist()))

    def matches(self, tensor: torch.Tensor, at: Reorder | None = None) -> bool:
        """Whether a tensor holds these values, in its own dtype; `at` is applied to its rows first."""
        rows: list[int] = list(self.rows)
        if at is not None:
            rows = at(torch.arange(len(tensor)))[rows].tolist()
        expected = torch.tensor(self.values, dtype=torch.float32).to(tensor.dtype)
        return bool(torch.equal(_head(tensor, rows), expected))


Checksums = Mapping[str, Checksum]  # by our tensor name


def fault(name: str, checksum: Checksum, tensor: torch.Tensor, original: KeyMap) -> str | None:
    """Returns None if the tensor fits its checksum, else which mistake explains what it holds."""
    if checksum.matches(tensor):
        return None
    entry = next(entry for entry in original.entries if entry.target == name)
    if entry.reorder and checksum.matches(tensor, entry.reorder):
        return "its QKV rows are grouped per head where stacked ones were expected"
    if entry.restore and checksum.matches(tensor, entry.restore):
        return "its QKV rows are stacked where rows grouped per head were expected"
    if len(tensor) % 2 == 0 and checksum.matches(tensor, swap_halves):
        return "its gate and up halves are exchanged"
    return "it holds other values than were recorded"


def read_checksums(folder: Path) -> dict[str, Checksums]:
    """What `h3serve.json` of a partition's folder says, by `key`; empty if there is none."""
    file = folder / FILE
    if not file.is_file():
        return {}
    record = read_json(file)
    if record.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(f"{file}: schema_version must be {SCHEMA_VERSION}")
    try:
        return {
            component: {name: _parse(checksum) for name, checksum in checksums.items()}
            for component, checksums in record["probes"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{file}: its probes are damaged") from None


def write_checksums(folder: Path, checksums: Mapping[str, Checksums], rules: SizeRules) -> None:
    """Writes `h3serve.json` of a partition's folder."""
    record = {
        component: {name: {"rows": checksum.rows, "values": checksum.values} for name, checksum in named.items()}
        for component, named in checksums.items()
    }
    value = {"schema_version": SCHEMA_VERSION, SIZE_RULES: asdict(rules), "probes": record}
    (folder / FILE).write_text(json.dumps(value, indent=1) + "\n")


def read_size_rules(folder: Path) -> SizeRules:
    """Size rules of the partition in `folder`; the released ones if its `h3serve.json` names none."""
    file = folder / FILE
    stored = read_json(file).get(SIZE_RULES) if file.is_file() else None
    if stored is None:
        return RELEASED_SIZES
    names = {field.name for field in fields(SizeRules)}
    whole = isinstance(stored, dict) and set(stored) == names and all(type(v) is int and v > 0 for v in stored.values())
    if not whole:
        raise CheckpointError(f"{file}: {SIZE_RULES} must hold the positive whole numbers {', '.join(sorted(names))}")
    return SizeRules(**stored)


def key(component: str, partition: str) -> str:
    """The name under which a component's checksums are recorded; only the transformers differ by partition."""
    return f"transformer/{partition}" if component == "transformer" else component


def _parse(checksum: Any) -> Checksum:
    rows, values = checksum["rows"], checksum["values"]
    return Checksum(tuple(map(int, rows)), tuple(tuple(map(float, row)) for row in values))


def _head(tensor: torch.Tensor, rows: list[int] | tuple[int, ...]) -> torch.Tensor:
    picked = tensor[list(rows)]
    return picked.reshape(len(picked), -1)[:, :COLUMNS].cpu()
