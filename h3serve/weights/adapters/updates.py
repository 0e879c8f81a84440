"""What an adapter does to a weight, in one form: the definition that merging computes and the run-time path is held to.

Every update belongs to rows `first` to `first + rows` of one of our tensors, in our row order. Its `delta` is what is
added to those rows, float32, at strength 1. Deltas of several adapters add up, each computed from the untouched base,
so their order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True)
class Scale:
    """The factor of a product of factors: `value`, and the alpha and rank that it comes from."""

    value: float
    rank: int
    alpha: float
    source: str  # where alpha was found, in words


@dataclass(frozen=True)
class Update:
    """Base of all updates: where it applies."""

    target: str  # our tensor
    first: int
    rows: int

    strength_linear: ClassVar[bool] = (
        True  # whether strength s adds s times the delta; if not, only 0 and 1 have a meaning
    )
    mergeable: ClassVar[bool] = True

    @property
    def path(self) -> str:
        """Our layer whose tensor it changes."""
        return self.target.rpartition(".")[0]

    @property
    def scale_of(self) -> Scale | None:
        """Rank, alpha and where alpha was found; None for an update that has none."""
        return None

    @property
    def is_modulation(self) -> bool:
        """Whether it changes only the modulation tables, an AdaLN update: the transformer itself is untouched."""
        return self.target.startswith("modulation.")

    @property
    def is_no_op(self) -> bool:
        """Whether its delta is zero for every base."""
        return False

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        """float32 [rows, columns] (a bias: [rows]) to add at strength 1; `base` is these rows, untouched."""
        raise NotImplementedError


class Scaled(Update):
    """A product of factors, which has a scale."""

    scale: Scale

    @property
    def scale_of(self) -> Scale:
        return self.scale


@dataclass(frozen=True)
class LowRank(Scaled):
    """`scale * b @ a`: LoRA. a [rank, columns], b [rows, rank], as stored."""

    a: torch.Tensor
    b: torch.Tensor
    scale: Scale

    @property
    def is_no_op(self) -> bool:
        return not (self.a.any() and self.b.any())

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        del base
        return self.scale.value * (self.b.float() @ self.a.float())


@dataclass(frozen=True)
class LoHa(Scaled):
    """`scale * (b1 @ a1) * (b2 @ a2)`, element by element. b [rows, rank], a [rank, columns]."""

    b1: torch.Tensor
    a1: torch.Tensor
    b2: torch.Tensor
    a2: torch.Tensor
    scale: Scale

    @property
    def is_no_op(self) -> bool:
        return not all(factor.any() for factor in (self.b1, self.a1, self.b2, self.a2))

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        del base
        return self.scale.value * (self.b1.float() @ self.a1.float()) * (self.b2.float() @ self.a2.float())


@dataclass(frozen=True)
class LoKr(Scaled):
    """`scale * kron(w1, w2)`, where a tuple `(b, a)` stands for the product b @ a.

    `order` int64 [rows] is the row of the Kronecker product that each of our rows is, None if they are the same: the
    product's rows cannot be permuted inside its factors.
    """

    w1: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    w2: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    scale: Scale
    order: torch.Tensor | None = None

    @property
    def is_no_op(self) -> bool:
        return not (self.factor(1).any() and self.factor(2).any())

    def factor(self, number: int) -> torch.Tensor:
        """float32 w1 or w2, multiplied out."""
        stored = self.w1 if number == 1 else self.w2
        return stored.float() if isinstance(stored, torch.Tensor) else stored[0].float() @ stored[1].float()

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        del base
        product = self.scale.value * torch.kron(self.factor(1), self.factor(2))
        return product if self.order is None else product[self.order]


@dataclass(frozen=True)
class DoRA(Update):
    """`magnitude * v / norm(v)` with v = base + inner delta: the merged weight's norm, as PEFT and LyCORIS train.

    magnitude [rows] with a norm per row, or [columns] with `by_column`. Strength moves on the line from the base to
    this weight, so that strength 0 is the base and one adapter does not depend on another.
    """

    inner: LowRank | LoHa | LoKr
    magnitude: torch.Tensor
    by_column: bool = False

    @property
    def scale_of(self) -> Scale:
        return self.inner.scale

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        base = base.float()
        merged = base + self.inner.delta(base)
        norm = merged.norm(dim=0 if self.by_column else 1, keepdim=True)
        norm = norm.clamp_min(torch.finfo(torch.float32).tiny)  # a row of zeros stays one
        magnitude = self.magnitude.float()
        return (magnitude if self.by_column else magnitude[:, None]) * merged / norm - base


@dataclass(frozen=True)
class Difference(Update):
    """A whole tensor to add. Of a bias it is a constant output offset."""

    value: torch.Tensor

    @property
    def is_no_op(self) -> bool:
        return not bool(self.value.any())

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        del base
        return self.value.float()


@dataclass(frozen=True)
class Replacement(Update):
    """A whole tensor instead of the base's; nobody defines half of one."""

    value: torch.Tensor

    strength_linear: ClassVar[bool] = False

    def delta(self, base: torch.Tensor) -> torch.Tensor:
        return self.value.float() - base.float()


@dataclass(frozen=True)
class HeadBank(Update):
    """An output head for every interval of a distilled schedule: [intervals, rows, columns]; a bias [intervals, rows].

    They stand in for the base's head, each on its own interval of sigmas: no one delta is equal to them.
    """

    value: torch.Tensor

    strength_linear: ClassVar[bool] = False
    mergeable: ClassVar[bool] = False
