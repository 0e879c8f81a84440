"""The tensors of one layer of an adapter's file, read and made into updates."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError, safe_open

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.adapter_alpha import AlphaRule
from h3serve.weights.adapters.layer_tensors import BIASES, WHOLE, LayerTensors
from h3serve.weights.adapters.updates import (
    Difference,
    DoRA,
    HeadBank,
    LoHa,
    LoKr,
    LowRank,
    Replacement,
    Scale,
    Update,
)
from h3serve.weights.files.tensor_index import TensorInfo


class AdapterReader:
    """Reads the tensors of one file; every number has to be finite."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> AdapterReader:
        try:
            self._open = safe_open(self.path, framework="pt").__enter__()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def read(self, info: TensorInfo) -> torch.Tensor:
        """The tensor as it is stored."""
        try:
            value = self._open.get_tensor(info.name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path}: {info.name} cannot be read: {error}") from None
        # Both ends tell, since NaN becomes both: a hundredth of what isfinite takes on 16-bit numbers.
        ends = torch.stack(torch.aminmax(value.float() if value.dtype.itemsize == 1 else value))
        if not torch.isfinite(ends).all():
            raise CheckpointError(f"{self.path}: {info.name} holds numbers that are not finite (NaN or infinity)")
        return value


def build_updates(group: LayerTensors, reader: AdapterReader, rule: AlphaRule) -> list[Update]:
    """The updates of one layer, whose tensors were found to fit, in our row order."""
    builder = _Builder(group, reader)
    family = [builder.family(rule)] if group.family else []
    return [*family, *(builder.whole(role) for role in WHOLE if role in group.tensors)]


class _Builder:
    """Reads one layer's tensors."""

    def __init__(self, group: LayerTensors, reader: AdapterReader) -> None:
        self.group, self.reader, self.layer = group, reader, group.layer
        self.place = (self.layer.weight, self.layer.first, self.layer.rows)

    def family(self, rule: AlphaRule) -> Update:
        """The product of factors."""
        scale, made = self._scale(rule), self.group.family
        inner: LowRank | LoHa | LoKr
        if made == "LoRA":
            inner = LowRank(*self.place, self._read("a"), self._ordered("b"), scale)
        elif made == "LoHa":
            inner = LoHa(
                *self.place,
                self._ordered("hada_w1_a"),
                self._read("hada_w1_b"),
                self._ordered("hada_w2_a"),
                self._read("hada_w2_b"),
                scale,
            )
        else:
            order = self.layer.reorder(torch.arange(self.layer.rows)) if self.layer.reorder else None
            inner = LoKr(*self.place, self._factor("lokr_w1"), self._factor("lokr_w2"), scale, order)
        if "magnitude" not in self.group.tensors:
            return inner
        by_column = self.group.shape("magnitude") == (1, self.layer.columns)
        magnitude = self._read("magnitude") if by_column else self._ordered("magnitude")
        return DoRA(*self.place, inner, magnitude.flatten(), by_column)

    def whole(self, role: str) -> Update:
        """A whole tensor: a difference, a replacement or a bank of heads."""
        target = self.layer.bias if role in BIASES else self.layer.weight
        place, value, rows = (target, self.layer.first, self.layer.rows), self._read(role), self.layer.rows
        if role.startswith("bank"):
            return HeadBank(*place, value)
        if role.startswith("set") and rows and len(value) > rows:  # Comfy's bank: a head, and offsets from it
            heads = value.float().view(-1, rows, *value.shape[1:])
            return HeadBank(*place, torch.cat([heads[:1], heads[:1] + heads[1:]]))
        ordered = self.layer.reorder(value) if self.layer.reorder and role not in BIASES else value
        place = (target, self.layer.first, rows or len(value))
        return (Replacement if role.startswith("set") else Difference)(*place, ordered)

    def _scale(self, rule: AlphaRule) -> Scale:
        rank = self.group.inner_rank()
        if not rank:
            return Scale(1.0, 0, 0.0, "two whole factors: no alpha applies")
        stored = float(self._read("alpha")) if "alpha" in self.group.tensors else None
        return rule.scale(self.group.name, rank, stored)

    def _factor(self, role: str) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if role in self.group.tensors:
            return self._read(role)
        return self._read(f"{role}_a"), self._read(f"{role}_b")

    def _ordered(self, role: str) -> torch.Tensor:
        value = self._read(role)
        return self.layer.reorder(value).contiguous() if self.layer.reorder else value

    def _read(self, role: str) -> torch.Tensor:
        return self.reader.read(self.group.tensors[role])
