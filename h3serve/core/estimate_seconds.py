"""How long evaluations take: a curve in the terms of the cost formula, its rates where they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize, attention_flops, linear_flops
from h3serve.core.limits import Quality

Point = tuple[int, float]  # rows, seconds of one evaluation


@dataclass(frozen=True)
class Growth:
    """seconds = linear_flops(rows) / linear + attention_flops(rows) / attention, rates in FLOP/s."""

    linear: float
    attention: float

    def seconds(self, rows: float, model: ModelSize = RELEASED_MODEL) -> float:
        """Seconds of one evaluation over `rows` packed rows."""
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


# Curves through what was measured of an evaluation, everything resident, with the optional extra `fa4`: within 2 % of
# it from 15 to 109 thousand rows. `exact` was measured at one length and has diffusers' curve beyond.
MEASURED: Mapping[str, Mapping[Quality, Growth]] = {
    "NVIDIA H200": {
        "exact": Growth(linear=527e12, attention=567e12),
        "lossless": Growth(linear=653e12, attention=671e12),
        "fast": Growth(linear=1066e12, attention=777e12),
    }
}


@dataclass(frozen=True)
class Rest:
    """Seconds of all but the evaluations: of the video VAE per packed row, of what is the same for all requests."""

    decode: float
    encode: float
    fixed: float

    def seconds(self, target_rows: int, condition_rows: int) -> float:
        """Seconds beside the evaluations; rows of the video kind alone: those that are made, those that are given."""
        return self.fixed + self.decode * target_rows + self.encode * condition_rows


# The video VAE is the same at every quality but `exact`. 37,296 rows are 5 s; fixed: text, audio, the MP4's end.
REST: Mapping[str, Mapping[Quality, Rest]] = {
    "NVIDIA H200": {
        "exact": Rest(6.29 / 37_296, 14.2 / 37_296, 1.0),
        "lossless": Rest(3.48 / 37_296, 4.68 / 37_296, 1.0),
        "fast": Rest(3.48 / 37_296, 4.68 / 37_296, 1.0),
    }
}


def request_seconds(
    rows: int, evaluations: int, *, target_rows: int, condition_rows: int, model: ModelSize = RELEASED_MODEL
) -> dict[str, dict[str, float]]:
    """Seconds of a whole request on one device, everything resident, by its kind and by quality.

    `rows` are all packed rows, the two others those of the video kind.
    Empty for a model of other sizes than the release.
    """
    if not model.runs_like_the_release:
        return {}
    return {
        device: {
            quality: round(
                evaluations * curve.seconds(rows, model) + REST[device][quality].seconds(target_rows, condition_rows), 1
            )
            for quality, curve in curves.items()
        }
        for device, curves in MEASURED.items()
    }


def denoise_seconds(rows: int, evaluations: int, model: ModelSize = RELEASED_MODEL) -> dict[str, dict[str, float]]:
    """Seconds of all evaluations on one device, by its kind and by quality; empty as `request_seconds` is."""
    if not model.runs_like_the_release:
        return {}
    return {
        device: {quality: round(evaluations * curve.seconds(rows, model), 1) for quality, curve in curves.items()}
        for device, curves in MEASURED.items()
    }
