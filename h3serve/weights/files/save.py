"""From a network's state to safetensors files: the way back through a key map."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from h3serve.models.key_map import KeyMap

Tensors = Mapping[str, torch.Tensor]


def stored_tensors(state: Tensors, key_map: KeyMap) -> dict[str, torch.Tensor]:
    """A file's tensors from ours: rows put back in file order, fused tensors cut into equal sources."""
    stored: dict[str, torch.Tensor] = {}
    for entry in key_map.entries:
        rows = state[entry.target]
        rows = entry.restore(rows) if entry.restore else rows
        parts = rows.chunk(len(entry.sources)) if len(entry.sources) > 1 else (rows,)
        stored |= dict(zip(entry.sources, parts, strict=True))
    return stored


def save_shards(tensors: Tensors, folder: Path, *, stem: str, shards: int = 1) -> None:
    """Write one file, or `shards` files of about equal size with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensors[name].contiguous() for name in sorted(tensors)}
    if shards == 1:
        save_file(tensors, folder / f"{stem}.safetensors", {"format": "pt"})
        return
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map: dict[str, str] = {}
    before = 0
    for name, tensor in tensors.items():
        number = 1 + min(shards - 1, before * shards // total)
        weight_map[name] = f"{stem}-{number:05d}-of-{shards:05d}.safetensors"
        before += tensor.nbytes
    for file in sorted(set(weight_map.values())):
        save_file(
            {name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file, {"format": "pt"}
        )
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
