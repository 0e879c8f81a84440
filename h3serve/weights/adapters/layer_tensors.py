"""What a file holds for one layer, and whether that goes together and fits the layer, by header entries alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.adapter_layers import Layer
from h3serve.weights.files.tensor_index import TensorInfo

HEADS = ("transformer.final_layer.video_out", "transformer.final_layer.audio_out")
# Family -> the tensors that it is made of: all of them, or none. LoKr's two factors are whole, or two `PARTS` each.
FAMILIES = {"LoRA": ("a", "b"), "LoHa": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")}
PARTS = {"lokr_w1": ("lokr_w1_a", "lokr_w1_b"), "lokr_w2": ("lokr_w2_a", "lokr_w2_b")}
WHOLE = ("diff", "diff_b", "set_weight", "set_bias", "bank", "bank_bias")
BIASES = ("diff_b", "set_bias", "bank_bias")


@dataclass(frozen=True)
class LayerTensors:
    """What a file holds for one layer, by role."""

    name: str  # as the file spells it, without prefix
    layer: Layer
    tensors: Mapping[str, TensorInfo]

    @property
    def family(self) -> str | None:
        """Which product of factors is here."""
        if "a" in self.tensors or "b" in self.tensors:
            return "LoRA"
        if any(role.startswith("hada_") for role in self.tensors):
            return "LoHa"
        return "LoKr" if any(role.startswith("lokr_") for role in self.tensors) else None

    def check(self, path: Path) -> None:
        """CheckpointError unless the tensors go together and fit the layer; nothing is read."""
        _LayerCheck(path, self).all()

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of the tensor of a role."""
        return self.tensors[role].shape

    def inner_rank(self) -> int:
        """The rank that alpha is divided by; 0 for a LoKr of two whole factors, whose alpha means nothing."""
        if self.family == "LoRA":
            return self.shape("a")[0]
        if self.family == "LoHa":
            return self.shape("hada_w1_b")[0]
        return next((self.shape(f"{w}_b")[0] for w in ("lokr_w2", "lokr_w1") if f"{w}_b" in self.tensors), 0)


class _LayerCheck:
    """Complaints about one layer's tensors."""

    def __init__(self, path: Path, group: LayerTensors) -> None:
        self.path, self.group, self.layer = path, group, group.layer

    def all(self) -> None:
        """Everything that header entries show."""
        for info in self.group.tensors.values():
            if not info.dtype.is_floating_point and not info.name.endswith(".alpha"):
                raise self._fault(
                    info, f"is stored as {str(info.dtype).removeprefix('torch.')}", "floating-point numbers"
                )
            if prod(info.shape) == 0:
                raise self._fault(info, f"has shape {list(info.shape)}", "at least one number")
        if "alpha" in self.group.tensors and prod(self.group.shape("alpha")) != 1:
            raise self._fault(self.group.tensors["alpha"], f"has shape {list(self.group.shape('alpha'))}", "one number")
        self._family()
        for role in WHOLE:
            if role in self.group.tensors:
                self._whole(role)

    def _family(self) -> None:
        family, held = self.group.family, {role for role in self.group.tensors if role not in WHOLE}
        wanted = self._wanted(family, held)
        if missing := sorted(wanted - held):
            present = self.group.tensors[next(iter(sorted(held)))].name
            raise CheckpointError(
                f"{self.path}: {present} is there, but not its other half: {', '.join(missing)} of {self.group.name}"
            )
        if odd := sorted(held - wanted - ({"alpha", "magnitude"} if family else set())):
            raise CheckpointError(f"{self.path}: {self.group.tensors[odd[0]].name} belongs to nothing that is there")
        if self.layer.rows == 0 and family:
            raise CheckpointError(f"{self.path}: {self.group.name} is a layer that the base does not have")
        if family == "LoRA":
            self._pair("a", "b", columns=self.layer.columns, rows=self.layer.rows)
        elif family == "LoHa":
            for number in "12":
                self._pair(f"hada_w{number}_b", f"hada_w{number}_a", columns=self.layer.columns, rows=self.layer.rows)
        elif family == "LoKr":
            self._kronecker()
        if "magnitude" in held:
            self._magnitude()

    def _wanted(self, family: str | None, held: set[str]) -> set[str]:
        if family != "LoKr":
            return set(FAMILIES[family]) if family else set()
        return {
            role
            for whole, parts in PARTS.items()
            for role in ([whole] if whole in held or not held & set(parts) else parts)
        }

    def _pair(self, a: str, b: str, *, columns: int, rows: int) -> None:
        """a is [rank, columns], b [rows, rank]."""
        shape = self.group.shape(a)
        if len(shape) != 2 or shape[1] != columns:
            narrow = self.layer.path.startswith("modulation.") and len(shape) == 2
            hint = ", it was trained on a base whose AdaLN is pruned to that width" if narrow else ""
            raise self._fault(self.group.tensors[a], f"has shape {list(shape)}{hint}", f"[rank, {columns}]")
        if self.group.shape(b) != (rows, shape[0]):
            raise self._fault(self.group.tensors[b], f"has shape {list(self.group.shape(b))}", f"[{rows}, {shape[0]}]")

    def _kronecker(self) -> None:
        shapes = []
        for whole, (left, right) in PARTS.items():
            if whole in self.group.tensors:
                shapes.append(self.group.shape(whole))
                continue
            b, a = self.group.shape(left), self.group.shape(right)
            if len(b) != 2 or len(a) != 2 or b[1] != a[0]:
                raise self._fault(
                    self.group.tensors[left], f"has shape {list(b)} beside {list(a)}", "[rows, rank], [rank, columns]"
                )
            shapes.append((b[0], a[1]))
        product = tuple(x * y for x, y in zip(*shapes, strict=False))
        if any(len(shape) != 2 for shape in shapes) or product != (self.layer.rows, self.layer.columns):
            info = next(self.group.tensors[role] for role in self.group.tensors if role.startswith("lokr_w2"))
            needed = f"a product of [{self.layer.rows}, {self.layer.columns}]"
            raise self._fault(info, f"makes {' x '.join(str(list(shape)) for shape in shapes)}", needed)

    def _magnitude(self) -> None:
        shape = self.group.shape("magnitude")
        fits = {(self.layer.rows,), (self.layer.rows, 1), (1, self.layer.columns)}
        if shape not in fits:
            needed = " or ".join(str(list(fit)) for fit in sorted(fits))
            raise self._fault(self.group.tensors["magnitude"], f"has shape {list(shape)}", needed)

    def _whole(self, role: str) -> None:
        info, layer = self.group.tensors[role], self.layer
        if role in BIASES and not layer.has_bias:
            raise CheckpointError(f"{self.path}: {info.name} is for a bias, and {self.group.name} has none")
        plain = (layer.rows,) if role in BIASES else (layer.rows, layer.columns)
        if layer.rows == 0:  # only the file knows
            if len(info.shape) != len(plain):
                raise self._fault(info, f"has shape {list(info.shape)}", f"{len(plain)} axes")
            return
        banks = layer.path in HEADS
        if role.startswith("bank"):
            if not banks or info.shape[1:] != plain:
                bank = f"[intervals, {', '.join(map(str, plain))}]"
                raise self._fault(
                    info, f"has shape {list(info.shape)}", f"an adapter's tensor, or a bank of heads {bank}"
                )
        elif role.startswith("set") and banks and len(info.shape) == len(plain) and info.shape[1:] == plain[1:]:
            if info.shape[0] % plain[0]:
                raise self._fault(info, f"has shape {list(info.shape)}", f"a multiple of {plain[0]} rows")
        elif info.shape != plain:
            raise self._fault(info, f"has shape {list(info.shape)}", str(list(plain)))

    def _fault(self, info: TensorInfo, found: str, needed: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {info.name} {found}; {needed} is needed")
