"""What an adapter adds to the output of a linear layer, without touching the layer's weight.

A layer computes y = x W^T + bias however its weight is held: resident, streamed, in 8 bits. An update dW adds x dW^T,
which terms compute from the update's own factors. What each update means is defined in `weights/adapters/updates.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from h3serve.weights.adapters.updates import Difference, DoRA, LoHa, LoKr, LowRank, Update
from h3serve.weights.formats.entry_rows import Part

Factor = float | torch.Tensor  # for all rows, or float32 [rows]


@dataclass(frozen=True)
class Term:
    """Adds to `rows` of the layer's outputs, from `first` on, its values times `factor`."""

    first: int
    rows: int
    factor: Factor

    def times(self, factor: Factor) -> Self:
        """The term times a number, or a number per row."""
        return replace(self, factor=factor * self.factor)

    def to(self, device: torch.device) -> Self:
        """The term with its tensors on `device`."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {name: value.to(device) for name, value in held.items() if isinstance(value, torch.Tensor)}
        return replace(self, **moved)  # type: ignore[arg-type]

    def inputs(self, positions: torch.Tensor) -> Term:
        """The product with these of the layer's inputs alone."""
        raise NotImplementedError

    def some_rows(self, chosen: torch.Tensor, first: int) -> Term:
        """These of its rows, which are the layer's from `first` on."""
        factor = self.factor[chosen] if isinstance(self.factor, torch.Tensor) else self.factor
        return replace(self, first=first, rows=len(chosen), factor=factor)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that it holds."""
        return [value for f in fields(self) if isinstance(value := getattr(self, f.name), torch.Tensor)]


@dataclass(frozen=True)
class LowRankTerm(Term):
    """(x A^T) B^T. a [rank, inputs], b [rows, rank]."""

    a: torch.Tensor
    b: torch.Tensor

    def inputs(self, positions: torch.Tensor) -> Term:
        """A's columns."""
        return replace(self, a=self.a[:, positions])

    def some_rows(self, chosen: torch.Tensor, first: int) -> Term:
        """B's rows."""
        return replace(super().some_rows(chosen, first), b=self.b[chosen])  # type: ignore[call-arg]


@dataclass(frozen=True)
class DenseTerm(Term):
    """x D^T, delta [rows, inputs]: as large as the layer, for updates that have no small factors."""

    delta: torch.Tensor

    def inputs(self, positions: torch.Tensor) -> Term:
        """The delta's columns."""
        return replace(self, delta=self.delta[:, positions])

    def some_rows(self, chosen: torch.Tensor, first: int) -> Term:
        """The delta's rows."""
        return replace(super().some_rows(chosen, first), delta=self.delta[chosen])  # type: ignore[call-arg]


@dataclass(frozen=True)
class KroneckerTerm(Term):
    """x kron(w1, w2)^T; `order` as in `LoKr`."""

    w1: torch.Tensor
    w2: torch.Tensor
    order: torch.Tensor | None

    def dense(self) -> DenseTerm:
        """The same as a matrix."""
        product = torch.kron(self.w1, self.w2)
        return DenseTerm(self.first, self.rows, self.factor, product if self.order is None else product[self.order])

    def inputs(self, positions: torch.Tensor) -> Term:
        """A part of a Kronecker product is none."""
        return self.dense().inputs(positions)

    def some_rows(self, chosen: torch.Tensor, first: int) -> Term:
        """A part of a Kronecker product is none."""
        return self.dense().some_rows(chosen, first)


@dataclass(frozen=True)
class GainTerm(Term):
    """The base's own output without its bias."""

    def inputs(self, positions: torch.Tensor) -> Term:
        """The whole output, of all inputs."""
        del positions
        return self


@dataclass(frozen=True)
class OffsetTerm(Term):
    """A constant: its factor."""

    def inputs(self, positions: torch.Tensor) -> Term:
        """It takes no input."""
        del positions
        return self


def terms_of(update: Update, base: Callable[[], torch.Tensor]) -> list[Term]:
    """The terms of an update of a linear layer's weight or bias, at strength 1.

    `base()` returns those rows of the base that the update changes; only updates that depend on them call it.
    """
    place = update.first, update.rows
    if update.target.endswith(".bias"):
        return [OffsetTerm(*place, update.delta(base()))]
    if isinstance(update, DoRA) and not update.by_column:
        ratio = _dora_ratio(update, base())
        return [GainTerm(*place, ratio - 1), *(term.times(ratio) for term in terms_of(update.inner, base))]
    if isinstance(update, LowRank):
        return [LowRankTerm(*place, update.scale.value, update.a, update.b)]
    if isinstance(update, LoHa) and (factors := _as_low_rank(update)):
        return [LowRankTerm(*place, update.scale.value, *factors)]
    if isinstance(update, LoKr):
        return [KroneckerTerm(*place, update.scale.value, update.factor(1), update.factor(2), update.order)]
    if isinstance(update, Difference):
        return [DenseTerm(*place, 1.0, update.value)]
    return [DenseTerm(*place, 1.0, update.delta(base()))]


def _dora_ratio(update: DoRA, base: torch.Tensor) -> torch.Tensor:
    """float32 [rows]: the trained magnitude over the norm of the merged row."""
    norm = (base.float() + update.inner.delta(base)).norm(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return update.magnitude.float() / norm


def _as_low_rank(update: LoHa) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A and B of (B1 A1) * (B2 A2), which hold the products of its factors' rows and columns; None if a matrix is less.

    Each entry of the product is sum_ij B1[r,i] B2[r,j] A1[i,c] A2[j,c].
    """
    rank, columns = len(update.a1) * len(update.a2), update.a1.shape[1]
    if rank * (update.rows + columns) >= update.rows * columns:
        return None
    b = (update.b1.float()[:, :, None] * update.b2.float()[:, None, :]).flatten(1)
    a = (update.a1.float()[:, None, :] * update.a2.float()[None, :, :]).flatten(0, 1)
    return a, b


def shard_term(term: Term, part: Part | None, outputs: int) -> Term | None:
    """What a rank that holds `part` of a layer's weight computes of a term; None if it has none of its rows.

    `outputs` are those of the whole layer. Where a rank has some of the inputs, ranks' products have to be summed.
    """
    if part is None:
        return term
    if part.axis == 1:
        width = _columns(term)
        return term if width is None else term.inputs(part.positions(width))
    held = part.positions(outputs)
    inside = (held >= term.first) & (held < term.first + term.rows)
    if not bool(inside.any()):
        return None
    return term.some_rows(held[inside] - term.first, int(inside.nonzero()[0]))


def _columns(term: Term) -> int | None:
    if isinstance(term, LowRankTerm):
        return term.a.shape[1]
    if isinstance(term, DenseTerm):
        return term.delta.shape[1]
    return term.w1.shape[1] * term.w2.shape[1] if isinstance(term, KroneckerTerm) else None
