"""How long evaluations take, from rates measured on the device kinds that were at hand (bench/results/)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from h3serve.core.cost import RELEASED_MODEL, ModelSize, attention_flops, linear_flops
from h3serve.core.tasks import Quality


@dataclass(frozen=True)
class Rates:
    """Sustained FLOP/s of the linear layers and of attention, and what comes on top of both as a factor."""

    linear: float
    attention: float
    overhead: float

    def seconds(self, rows: int, model: ModelSize = RELEASED_MODEL) -> float:
        """Of one evaluation over `rows` packed rows, everything resident."""
        floor = linear_flops(rows, model) / self.linear + attention_flops(rows, model) / self.attention
        return floor * self.overhead


# With the optional extra `fa4`; within 1 % of what was measured at 38 and 74 thousand rows.
MEASURED: Mapping[str, Mapping[Quality, Rates]] = {
    "NVIDIA H200": {
        "exact": Rates(686e12, 568e12, 1.111),
        "lossless": Rates(686e12, 682e12, 1.012),
        "fast": Rates(1279e12, 682e12, 1.027),
    }
}


@dataclass(frozen=True)
class Rest:
    """Seconds of all but the evaluations: of the video VAE per packed row, of what is the same for all requests."""

    decode: float
    encode: float
    fixed: float

    def seconds(self, target_rows: int, condition_rows: int) -> float:
        """Rows of the picture alone: those that are made, and those that are given."""
        return self.fixed + self.decode * target_rows + self.encode * condition_rows


# The video VAE is the same in all tiers but `exact`. 37,296 rows are a clip of 5 s; fixed: text, sound, the MP4's end.
REST: Mapping[str, Mapping[Quality, Rest]] = {
    "NVIDIA H200": {
        "exact": Rest(5.55 / 37_296, 14.2 / 37_296, 1.0),
        "lossless": Rest(3.73 / 37_296, 4.68 / 37_296, 1.0),
        "fast": Rest(3.73 / 37_296, 4.68 / 37_296, 1.0),
    }
}


def request_seconds(
    rows: int, evaluations: int, *, target_rows: int, condition_rows: int, model: ModelSize = RELEASED_MODEL
) -> dict[str, dict[str, float]]:
    """Seconds of a whole request on one device, everything resident, by its kind and by tier.

    `rows` are all packed rows, the two others those of pictures.
    """
    return {
        device: {
            tier: round(
                evaluations * rates.seconds(rows, model) + REST[device][tier].seconds(target_rows, condition_rows), 1
            )
            for tier, rates in tiers.items()
        }
        for device, tiers in MEASURED.items()
    }


def denoise_seconds(rows: int, evaluations: int, model: ModelSize = RELEASED_MODEL) -> dict[str, dict[str, float]]:
    """Seconds of all evaluations on one device, by its kind and by tier."""
    return {
        device: {tier: round(evaluations * rates.seconds(rows, model), 1) for tier, rates in tiers.items()}
        for device, tiers in MEASURED.items()
    }
