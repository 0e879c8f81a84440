"""How seconds grow with a clip's rows: a curve through measured points, in the terms of the cost formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h3serve.core.cost import RELEASED_MODEL, ModelSize, attention_flops, linear_flops

Point = tuple[int, float]  # rows, seconds of one evaluation


@dataclass(frozen=True)
class Growth:
    """seconds = linear_flops(rows) / linear + attention_flops(rows) / attention, rates in FLOP/s."""

    linear: float
    attention: float

    def seconds(self, rows: float, model: ModelSize = RELEASED_MODEL) -> float:
        """Of one evaluation."""
        return _linear(rows, model) / self.linear + _attention(rows, model) / self.attention

    def distance(self, points: Sequence[Point], model: ModelSize = RELEASED_MODEL) -> float:
        """The largest of the points' distances from the curve, over what was measured."""
        return max(abs(self.seconds(rows, model) / seconds - 1) for rows, seconds in points)


def fit(points: Sequence[Point], model: ModelSize = RELEASED_MODEL) -> Growth:
    """The two rates whose curve is nearest to the points: least squares of relative distances.

    The formula (spec/transformer.md 2.8) says that evaluations are a term in S and a term in S squared; if the
    points lie on such a curve, the rates are what the device gives to each of them.
    """
    if len({rows for rows, _ in points}) < 2:
        raise ValueError("a curve of two terms needs points at two lengths")
    # Normal equations of: x * linear_flops / t + y * attention_flops / t = 1.
    first = [_linear(rows, model) / seconds for rows, seconds in points]
    second = [_attention(rows, model) / seconds for rows, seconds in points]
    aa, bb = sum(a * a for a in first), sum(b * b for b in second)
    ab = sum(a * b for a, b in zip(first, second, strict=True))
    determinant = aa * bb - ab * ab
    x = (sum(first) * bb - sum(second) * ab) / determinant
    y = (sum(second) * aa - sum(first) * ab) / determinant
    return Growth(1 / x, 1 / y)


def _linear(rows: float, model: ModelSize) -> float:
    return linear_flops(1, model) * rows


def _attention(rows: float, model: ModelSize) -> float:
    return attention_flops(1, model) * rows * rows
