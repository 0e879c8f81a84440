"""From the one form back to a file: for ComfyUI (native names), diffusers, or PEFT."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from h3serve.core.errors import CheckpointError
from h3serve.system.disk_files import whole_file
from h3serve.weights.adapters.adapter_alpha import PEFT_HEADER
from h3serve.weights.adapters.adapter_grammar import PEFT_CONFIG
from h3serve.weights.adapters.adapter_layers import BIAS, AdapterLayers, Layer
from h3serve.weights.adapters.open_adapter import Adapter
from h3serve.weights.adapters.updates import Difference, DoRA, LoHa, LoKr, LowRank, Replacement, Update

Tensors = dict[str, torch.Tensor]
Form = Literal["comfy", "diffusers", "peft"]
PREFIX = {"comfy": "diffusion_model.", "diffusers": "transformer.", "peft": "base_model.model."}


def convert_adapter(adapter: Adapter, layers: AdapterLayers, form: Form, out: Path) -> None:
    """Writes an adapter as another program reads it; CheckpointError names an update that the form cannot say.

    `comfy` and `diffusers` make the file `out`, `peft` the folder `out`. Values change only where q, k and v of
    differing scales become one layer: then the scales go into B, in float32.
    """
    if out.exists():
        raise CheckpointError(f"{out} is there already")
    if form == "comfy":
        _save(_comfy(adapter, layers), out, {"format": "pt"})
        return
    split = list(_split(adapter, layers, form))
    tensors = {
        f"{PREFIX[form]}{part.name}.lora_{letter}.weight": value.contiguous()
        for part in split
        for letter, value in (("A", part.a), ("B", part.b))
    }
    config = _peft_config(split)
    if form == "diffusers":
        metadata = {f"transformer.{key}": value for key, value in config.items()}
        _save(tensors, out, {"format": "pt", PEFT_HEADER: json.dumps(metadata)})
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as part:
        part.unlink()
        part.mkdir()
        _save(tensors, part / "adapter_model.safetensors", {"format": "pt"})
        (part / PEFT_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _save(tensors: Mapping[str, torch.Tensor], out: Path, header: dict[str, str]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as part:
        save_file({name: value.clone() for name, value in tensors.items()}, part, header)  # thirds share their A


# Layer by layer, q, k and v apart.


@dataclass(frozen=True)
class _Part:
    """A pair of factors under diffusers' name of its layer, rows in diffusers' order."""

    name: str
    a: torch.Tensor
    b: torch.Tensor
    alpha: float


def _split(adapter: Adapter, layers: AdapterLayers, form: Form) -> Iterator[_Part]:
    by_path: dict[str, list[tuple[str, Layer]]] = {}
    for name, layer in layers.layout_names["diffusers"].items():
        by_path.setdefault(layer.path, []).append((name, layer))
    for update in adapter.updates:
        if not isinstance(update, LowRank) or update.target.removesuffix(".weight") not in by_path:
            raise _unsayable(adapter, update, form)
        for name, layer in by_path[update.target.removesuffix(".weight")]:
            start = layer.first - update.first
            if not 0 <= start < update.rows:
                continue
            b = update.b[start : start + layer.rows]
            alpha = update.scale.value * len(update.a)
            yield _Part(name, update.a, b[_file_rows(layer)] if layer.reorder else b, alpha)


def _file_rows(layer: Layer) -> torch.Tensor:
    """int64 [rows]: our row of each row of the file."""
    assert layer.reorder is not None
    ours = layer.reorder(torch.arange(layer.rows))
    return torch.argsort(ours)


def _peft_config(parts: Sequence[_Part]) -> dict[str, Any]:
    """PEFT's configuration: the commonest rank and alpha, and patterns for the others."""
    rank = Counter(len(part.a) for part in parts).most_common(1)[0][0]
    alpha = Counter(part.alpha for part in parts).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(part.name for part in parts),
        "rank_pattern": {part.name: len(part.a) for part in parts if len(part.a) != rank},
        "alpha_pattern": {part.name: part.alpha for part in parts if part.alpha != alpha},
        "bias": "none",
    }


# Native names, q, k and v in one layer, stacked.


def _comfy(adapter: Adapter, layers: AdapterLayers) -> Tensors:
    whole = {layer.path: (name, layer) for name, layer in layers.layout_names["original"].items()}
    sections: dict[str, list[LowRank]] = {}
    tensors: Tensors = {}
    for update in adapter.updates:
        if update.path not in whole:
            raise _unsayable(adapter, update, "comfy")
        name, layer = whole[update.path]
        if isinstance(update, LowRank) and update.rows < layer.rows:
            sections.setdefault(update.path, []).append(update)
            continue
        said = _said(update) if update.rows == layer.rows else None
        if said is None:
            raise _unsayable(adapter, update, "comfy")
        tensors |= {f"{PREFIX['comfy']}{name}.{key}": value for key, value in said.items()}
    for path, parts in sections.items():
        name, layer = whole[path]
        tensors |= {f"{PREFIX['comfy']}{name}.{key}": value for key, value in _stacked(parts, layer.rows).items()}
    return tensors


def _said(update: Update) -> Tensors | None:
    """An update of a whole layer, by what follows the layer's name; None if there is no word for it."""
    bias = update.target.endswith(BIAS)
    if isinstance(update, Difference):
        return {"diff_b" if bias else "diff": update.value}
    if isinstance(update, Replacement):
        return {"set_bias" if bias else "set_weight": update.value}
    if isinstance(update, DoRA):
        inner = _said(update.inner)
        magnitude = update.magnitude[None] if update.by_column else update.magnitude[:, None]
        return None if inner is None else inner | {"dora_scale": magnitude}
    if isinstance(update, LowRank):
        return {"lora_A.weight": update.a, "lora_B.weight": update.b, "alpha": _alpha(update, len(update.a))}
    if isinstance(update, LoHa):
        factors = {"hada_w1_a": update.b1, "hada_w1_b": update.a1, "hada_w2_a": update.b2, "hada_w2_b": update.a2}
        return factors | {"alpha": _alpha(update, len(update.a1))}
    if isinstance(update, LoKr) and update.order is None:
        said: Tensors = {}
        for key, factor in (("lokr_w1", update.w1), ("lokr_w2", update.w2)):
            if isinstance(factor, torch.Tensor):
                said[key] = factor
            else:
                said |= {f"{key}_a": factor[0], f"{key}_b": factor[1]}
        return said | ({"alpha": _alpha(update, update.scale.rank)} if update.scale.rank else {})
    return None


def _alpha(update: LowRank | LoHa | LoKr, rank: int) -> torch.Tensor:
    """float32: what makes alpha / rank the update's scale."""
    return torch.tensor(update.scale.value * rank)


def _stacked(parts: Sequence[LowRank], rows: int) -> Tensors:
    """Factors of q, k and v as those of one layer: A one above another, B block by block; a missing one is zero."""
    rank = sum(len(part.a) for part in parts)
    alike = len({part.scale.value for part in parts}) == 1
    dtype = parts[0].b.dtype if alike else torch.float32
    b, column = torch.zeros(rows, rank, dtype=dtype), 0
    for part in parts:
        factor = part.b if alike else part.b.float() * part.scale.value
        b[part.first : part.first + part.rows, column : column + len(part.a)] = factor
        column += len(part.a)
    scale = parts[0].scale.value if alike else 1.0
    a = torch.cat([part.a for part in parts])
    return {"lora_A.weight": a, "lora_B.weight": b, "alpha": torch.tensor(scale * rank)}


def _unsayable(adapter: Adapter, update: Update, form: Form) -> CheckpointError:
    what = f"{type(update).__name__} of {update.target}"
    return CheckpointError(f"{adapter.file.path}: {what} cannot be written in the form {form}")
