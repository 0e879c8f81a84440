"""Rows of 8-bit floats: e4m3 values and one float32 scale a row."""

from __future__ import annotations

from typing import NamedTuple

import torch

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
SMALLEST_SCALE = 1e-12  # of a row of zeros


class Float8Rows(NamedTuple):
    """`values` [rows, width] times `scale` float32 [rows, 1] are the numbers meant."""

    values: torch.Tensor
    scale: torch.Tensor

    def float(self) -> torch.Tensor:
        """The numbers meant, in float32."""
        return self.values.float() * self.scale


def quantize_rows(x: torch.Tensor) -> Float8Rows:
    """Each row of x [rows, width] scaled so that its largest value becomes e4m3's largest, then rounded to nearest."""
    x = x.float()
    scale = (x.abs().amax(dim=1, keepdim=True) / LARGEST).clamp(min=SMALLEST_SCALE)
    return Float8Rows((x / scale).to(FLOAT8), scale)
