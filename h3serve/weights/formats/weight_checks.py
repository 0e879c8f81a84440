"""Cheap checks of weights: are they what the folder claims, in the order that the networks expect?

Certain: NaN and Inf, and, where `h3serve.json` lies beside the weights, row orders and exchanged
partitions. Statistical, so only a warning: row orders of a checkpoint without that file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.models.key_map import KeyMap
from h3serve.weights.files.tensor_index import TensorIndex, some
from h3serve.weights.formats.checksums import Checksums, fault, key
from h3serve.weights.formats.row_order import Opinion, gate_up_order, overall, qkv_order

log = logging.getLogger(__name__)

QKV, FC1, Q_NORM = "attn.qkv_proj.weight", "mlp.fc1.weight", "attn.q_norm.weight"
OTHER: dict[Partition, Partition] = {"fl2va": "ref2va", "ref2va": "fl2va"}
Tensors = Mapping[str, torch.Tensor]  # by our names, as the network holds them


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: Literal["finite", "order", "precision"]
    level: Literal["ok", "unknown", "warning", "fault"]
    text: str


def examine(
    name: str, partition: Partition, *, tensors: Tensors, original: KeyMap, recorded: Mapping[str, Checksums]
) -> tuple[Finding, ...]:
    """Checks tensors of one component, all or some of them, and returns what was found.

    `original` is its key map of the original layout, `recorded` what `h3serve.json` says.
    """
    here = key(name, partition)
    if here in recorded:
        order = _by_record(here, key(name, OTHER[partition]), tensors=tensors, original=original, recorded=recorded)
    elif name == "transformer":
        order = _by_statistics(tensors)
    else:
        order = Finding("order", "unknown", "nothing is recorded to compare with")
    return _finite(tensors), order


def precision(index: TensorIndex, key_map: KeyMap, dtype_of: Callable[[str], torch.dtype]) -> Finding:
    """Checks that what must be float32 is stored so; `dtype_of` is for the release's compute dtype."""
    islands = [e.sources[0] for e in key_map.entries if dtype_of(e.target) == torch.float32]
    coarse = [name for name in islands if index.tensors[name].dtype.itemsize < torch.float32.itemsize]
    if coarse:
        text = f"{len(coarse)} tensors that the release keeps in float32 are stored coarser: {some(coarse)}"
        return Finding("precision", "warning", text)
    return Finding("precision", "ok", "what must be float32 is")


def report(where: object, findings: Iterable[Finding]) -> None:
    """Raises CheckpointError for the first fault and logs every warning; `where` names the weights."""
    for finding in findings:
        if finding.level == "fault":
            raise CheckpointError(f"{where}: {finding.text}")
        if finding.level == "warning":
            log.warning("%s: %s", where, finding.text)


def _finite(tensors: Tensors) -> Finding:
    bad = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if bad:
        return Finding("finite", "fault", f"NaN or Inf in {len(bad)} tensors: {some(bad)}")
    return Finding("finite", "ok", f"no NaN or Inf in {len(tensors)} tensors")


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    # The extremes carry NaN and Inf along; unlike isfinite this makes no copy of the tensor.
    return all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor))


def _by_record(
    here: str, other: str, *, tensors: Tensors, original: KeyMap, recorded: Mapping[str, Checksums]
) -> Finding:
    checksums = recorded[here]
    if missing := sorted(set(checksums) - set(tensors)):
        return Finding("order", "fault", f"{some(missing)}: recorded, but not part of the model")
    faults = {name: fault(name, checksum, tensors[name], original) for name, checksum in checksums.items()}
    found = [f"{name}: {text}" for name, text in faults.items() if text]
    if not found:
        return Finding("order", "ok", f"{len(checksums)} tensors hold what {here} is recorded with")
    if other != here and _all_match(recorded.get(other, {}), tensors):
        return Finding("order", "fault", f"these are the weights of {other}, not of {here}")
    return Finding("order", "fault", "; ".join(found[:2]))


def _all_match(checksums: Checksums, tensors: Tensors) -> bool:
    return bool(checksums) and all(
        name in tensors and checksum.matches(tensors[name]) for name, checksum in checksums.items()
    )


def _by_statistics(tensors: Tensors) -> Finding:
    qkv = [_qkv_opinion(name, tensors) for name in _sample(tensors, QKV)]
    fc1 = [gate_up_order(tensors[name]) for name in _sample(tensors, FC1)]
    opinions = {"QKV": _together(qkv), "gate and up": _together(fc1)}
    said = "; ".join(f"{part}: {text}" for part, (_, text) in opinions.items())
    held = [opinion for opinion, _ in opinions.values()]
    if "against" in held:
        return Finding("order", "warning", f"the row order may be wrong (statistics, no proof): {said}")
    level: Literal["ok", "unknown"] = "ok" if "none" not in held else "unknown"
    return Finding("order", level, f"by statistics, {said}")


def sampled(names: Iterable[str]) -> set[str]:
    """The tensors of a transformer that the statistics look at: first, middle and last main block."""
    names = list(names)
    return {name for suffix in (QKV, FC1, Q_NORM) for name in _sample(names, suffix)}


def _sample(names: Iterable[str], suffix: str) -> list[str]:
    found = [name for name in names if name.endswith(suffix) and "token_refiner" not in name]
    return list(dict.fromkeys((found[0], found[len(found) // 2], found[-1]))) if found else []


def _qkv_opinion(name: str, tensors: Tensors) -> tuple[Opinion, str]:
    weight, gain = tensors[name], tensors[name.removesuffix(QKV) + Q_NORM]
    return qkv_order(weight, heads=len(weight) // (3 * len(gain)))


def _together(opinions: list[tuple[Opinion, str]]) -> tuple[Opinion, str]:
    opinion = overall([opinion for opinion, _ in opinions])
    text = next((text for held, text in opinions if held == opinion), "nothing to look at")
    return opinion, text
