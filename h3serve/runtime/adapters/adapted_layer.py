"""A linear layer's terms of all adapters, summed: a forward hook that adds them to the layer's output.

The layer, its weight and its name stay what they are, so that placements, weight kinds and ranks need not know. A
removed hook leaves the base's bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_rows import Float8Rows
from h3serve.runtime.adapters.adapter_terms import (
    DenseTerm,
    Factor,
    GainTerm,
    KroneckerTerm,
    LowRankTerm,
    OffsetTerm,
    Term,
)

Sum = Callable[[torch.Tensor], torch.Tensor]  # over the ranks that hold the layer's inputs


class AdaptedLayer:
    """`layer.register_forward_hook(AdaptedLayer(...))`.

    Low-rank terms of any number of adapters are one product with A and one with B for each range of rows. In 16 bits
    the layer's output is rounded once more for each term after the first.
    """

    def __init__(
        self, terms: Sequence[Term], *, outputs: int, device: torch.device, dtype: torch.dtype, total: Sum | None = None
    ) -> None:
        """`terms` with their strengths inside; `outputs` and `dtype` are the layer's on this rank.

        `total` sums products where this rank has only some of the layer's inputs.
        """
        self._dtype, self._total = dtype, total
        there = [term.to(device) for term in terms]
        self._gain = _summed([t for t in there if isinstance(t, GainTerm)], outputs, device)
        self._offset = _summed([t for t in there if isinstance(t, OffsetTerm)], outputs, device)
        self._a, self._b = _stacked([t for t in there if isinstance(t, LowRankTerm)], dtype)
        self._others = [_ready(t, dtype) for t in there if isinstance(t, DenseTerm | KroneckerTerm)]

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], out: torch.Tensor) -> torch.Tensor:
        """Adds to `out` [S, outputs] in place; the input is [S, inputs], or `Float8Rows` of it."""
        x: torch.Tensor | Float8Rows = inputs[0]
        if self._gain is not None:
            bias = getattr(layer, "bias", None)
            own = out if bias is None else out - bias
            out = out + (self._gain * own.float()).to(self._dtype)
        if self._a is not None:
            hidden = self._sum(_product(x, self._a, self._dtype))
            for place, ranks, b in self._b:
                out[:, place].addmm_(hidden[:, ranks], b.t())
        for term in self._others:
            out[:, term.first : term.first + term.rows] += self._sum(self._of(term, x))
        if self._offset is not None:
            out += self._offset.to(self._dtype)
        return out

    def _sum(self, product: torch.Tensor) -> torch.Tensor:
        return product if self._total is None else self._total(product)

    def _of(self, term: Term, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        if isinstance(term, DenseTerm):
            return _product(x, term.delta, self._dtype)
        assert isinstance(term, KroneckerTerm)
        plain = x.float().to(self._dtype) if isinstance(x, Float8Rows) else x
        # kron(w1, w2) x = w1 X w2^T, where X are the values of x in rows of w2's width
        grid = plain.unflatten(-1, (term.w1.shape[1], term.w2.shape[1]))
        product = (term.w1 @ F.linear(grid, term.w2)).flatten(-2)
        product = product if term.order is None else product[:, term.order]
        return (product.float() * term.factor).to(self._dtype)


def _product(x: torch.Tensor | Float8Rows, matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x M^T in `dtype`; 8-bit values are exact in 16 bits, so that their scale may come after the product."""
    if isinstance(x, Float8Rows):
        return (F.linear(x.values.to(dtype), matrix) * x.scale).to(dtype)
    return F.linear(x, matrix)


def _summed(terms: Sequence[Term], outputs: int, device: torch.device) -> torch.Tensor | None:
    if not terms:
        return None
    total = torch.zeros(outputs, device=device)
    for term in terms:
        total[term.first : term.first + term.rows] += term.factor
    return total


def _stacked(
    terms: Sequence[LowRankTerm], dtype: torch.dtype
) -> tuple[torch.Tensor | None, list[tuple[slice, slice, torch.Tensor]]]:
    """All A in one, and for each range of rows: (rows, ranks in A, all its B in one with their factors inside)."""
    by_place: dict[tuple[int, int], list[LowRankTerm]] = defaultdict(list)
    for term in terms:
        by_place[term.first, term.rows].append(term)
    a, b, rank = [], [], 0
    for (first, rows), together in by_place.items():
        a += [term.a.to(dtype) for term in together]
        wide = torch.cat([_times(term.b, term.factor).to(dtype) for term in together], dim=1)
        b.append((slice(first, first + rows), slice(rank, rank + wide.shape[1]), wide))
        rank += wide.shape[1]
    return (torch.cat(a) if a else None), b


def _times(rows: torch.Tensor, factor: Factor) -> torch.Tensor:
    return rows.float() * (factor[:, None] if isinstance(factor, torch.Tensor) else factor)


def _ready(term: DenseTerm | KroneckerTerm, dtype: torch.dtype) -> DenseTerm | KroneckerTerm:
    """The term as it is multiplied with: a matrix has its factor inside."""
    if isinstance(term, DenseTerm):
        return DenseTerm(term.first, term.rows, 1.0, _times(term.delta, term.factor).to(dtype))
    return KroneckerTerm(term.first, term.rows, term.factor, term.w1.to(dtype), term.w2.to(dtype), term.order)
