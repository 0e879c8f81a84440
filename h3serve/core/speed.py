"""How long evaluations take, from rates measured on the device kinds that were at hand (bench/results/)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from h3serve.core.cost import RELEASED_MODEL, ModelSize
from h3serve.core.growth import Growth
from h3serve.core.tasks import Quality

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
        """Rows of the picture alone: those that are made, and those that are given."""
        return self.fixed + self.decode * target_rows + self.encode * condition_rows


# The video VAE is the same in all tiers but `exact`. 37,296 rows are a clip of 5 s; fixed: text, sound, the MP4's end.
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
    """Seconds of a whole request on one device, everything resident, by its kind and by tier.

    `rows` are all packed rows, the two others those of pictures. Empty for a model of other sizes than the release.
    """
    if not model.runs_like_the_release:
        return {}
    return {
        device: {
            tier: round(
                evaluations * curve.seconds(rows, model) + REST[device][tier].seconds(target_rows, condition_rows), 1
            )
            for tier, curve in tiers.items()
        }
        for device, tiers in MEASURED.items()
    }


def denoise_seconds(rows: int, evaluations: int, model: ModelSize = RELEASED_MODEL) -> dict[str, dict[str, float]]:
    """Seconds of all evaluations on one device, by its kind and by tier; empty as `request_seconds` is."""
    if not model.runs_like_the_release:
        return {}
    return {
        device: {tier: round(evaluations * curve.seconds(rows, model), 1) for tier, curve in tiers.items()}
        for device, tiers in MEASURED.items()
    }
