"""What this card can do at the model's shapes: rates that bound a step from below, measured where the step is.

Each rate is that of the best single kernel, repeated until the card is at its power limit. Random data: zeros
would run faster than anything real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from bench.speed.timing import sustained
from h3serve.core.estimate_work import ModelSize, attention_flops, linear_flops
from h3serve.models.kernels.attention import Attention
from h3serve.models.kernels.float8_linear import Float8Linear, quantize
from h3serve.runtime.machine import has_float8_units

COPY_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of the linear layers (bfloat16 and 8-bit) and of attention; bytes/s of a copy, reads and writes."""

    rows: int
    linear: float
    linear8: float | None
    attention: Mapping[str, float]
    attention8: float | None
    copy: float

    def floor(self, model: ModelSize, *, linear8: bool = False, attention8: bool = False) -> float:
        """Seconds of one evaluation's linear layers and attention at these rates, and of nothing else."""
        linear_rate = self.linear8 if linear8 and self.linear8 else self.linear
        attention_rate = self.attention8 if attention8 and self.attention8 else max(self.attention.values())
        return linear_flops(self.rows, model) / linear_rate + attention_flops(self.rows, model) / attention_rate


def measure_ceilings(
    rows: int,
    model: ModelSize,
    kernels: Mapping[str, Attention],
    *,
    device: torch.device,
    seconds: float = 3.0,
    kernel8: Attention | None = None,
) -> Ceilings:
    """All rates at `rows` packed rows; `seconds` for each. `kernel8` is the attention on 8 bits, if there is one."""
    return Ceilings(
        rows=rows,
        linear=_linear_rate(rows, model, device, seconds, float8=False),
        linear8=_linear_rate(rows, model, device, seconds, float8=True) if has_float8_units(device) else None,
        attention={n: _attention_rate(rows, model, k, device, seconds) for n, k in kernels.items()},
        attention8=_attention_rate(rows, model, kernel8, device, seconds) if kernel8 else None,
        copy=_copy_rate(device, seconds / 3),
    )


def _shapes(model: ModelSize) -> list[tuple[int, int]]:
    """(in, out) of a block's four linear layers."""
    hidden, inner, ffn = model.hidden, model.inner, model.ffn
    return [(hidden, 3 * inner), (inner, hidden), (hidden, 2 * ffn), (ffn, hidden)]


def _draw(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def _linear_rate(rows: int, model: ModelSize, device: torch.device, seconds: float, *, float8: bool) -> float:
    shapes = _shapes(model)
    inputs = {width: _draw(rows, width, device=device) for width in {i for i, _ in shapes}}
    weights = [_draw(out, width, device=device) / width**0.5 for width, out in shapes]
    if float8:
        quantized = {width: quantize(x) for width, x in inputs.items()}
        layers = [_layer8(weight) for weight in weights]

        def block() -> None:
            for (width, _), layer in zip(shapes, layers, strict=True):
                layer(quantized[width])
    else:

        def block() -> None:
            for (width, _), weight in zip(shapes, weights, strict=True):
                F.linear(inputs[width], weight)

    return linear_flops(rows, model) / model.layers / sustained(block, seconds=seconds, device=device)


def _layer8(weight: torch.Tensor) -> Float8Linear:
    with torch.device("meta"):
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer = Float8Linear(linear, weight.dtype)
    layer.set_weight(weight)
    return layer


def _attention_rate(rows: int, model: ModelSize, kernel: Attention, device: torch.device, seconds: float) -> float:
    heads = model.inner // 128
    q, k, v = _draw(rows, 3, heads, 128, device=device).unbind(1)
    once = sustained(lambda: kernel(q, k, v), seconds=seconds, device=device)
    return attention_flops(rows, model) / model.layers / once


def _copy_rate(device: torch.device, seconds: float) -> float:
    count = (COPY_BYTES if device.type == "cuda" else COPY_BYTES >> 8) // 4
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    return 8.0 * count / sustained(lambda: target.copy_(source), seconds=seconds, device=device)
