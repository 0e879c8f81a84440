"""Linear layers on 8-bit floats: e4m3 weights with a scale per output, e4m3 inputs with a scale per row.

Half the memory of bfloat16 and about 1.8 times its speed on Hopper; what it costs in accuracy is in docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_rows import FLOAT8, Float8Rows, quantize_rows
from h3serve.models.kernels.optional_packages import has_triton

_ROWS_AT_ONCE = 2048  # of a weight: float32 copies of more would be the peak of a load


class Float8Linear(nn.Module):
    """Stands where an `nn.Linear` stood; made empty, filled by `set_weight`.

    Takes a tensor [..., in], which it quantizes, or `Float8Rows` that a kernel has made; gives `dtype`.
    The scales are no part of the state dict: a checkpoint holds the weight alone.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        device = linear.weight.device
        weight = torch.empty(self.out_features, self.in_features, dtype=FLOAT8, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = linear.bias
        self.weight_scale: torch.Tensor
        scale = torch.empty(self.out_features, 1, dtype=torch.float32, device=device)
        self.register_buffer("weight_scale", scale, persistent=False)

    def set_weight(self, weight: torch.Tensor) -> None:
        """Quantizes a weight [out, in] of any float dtype, on whose device the layer then is.

        A NaN or Inf of the weight is found in `weight_scale`.
        """
        parts = [quantize_rows(part) for part in weight.split(_ROWS_AT_ONCE)]
        self.weight = nn.Parameter(torch.cat([part.values for part in parts]), requires_grad=False)
        self.weight_scale = torch.cat([part.scale for part in parts])

    def forward(self, x: torch.Tensor | Float8Rows) -> torch.Tensor:
        """[..., in], or rows [S, in], to [..., out] in `dtype`."""
        if isinstance(x, Float8Rows):
            return self._product(x)
        return self._product(quantize(x.flatten(0, -2))).unflatten(0, x.shape[:-1])

    def _product(self, rows: Float8Rows) -> torch.Tensor:
        if rows.values.is_cuda:
            scales = {"scale_a": rows.scale, "scale_b": self.weight_scale.t()}
            out = torch._scaled_mm(rows.values, self.weight.t(), **scales, out_dtype=self.dtype, use_fast_accum=True)
        else:  # the same numbers from float32 arithmetic
            out = F.linear(rows.float(), Float8Rows(self.weight, self.weight_scale).float()).to(self.dtype)
        return out if self.bias is None else out + self.bias  # not in the call: cuBLAS has no such kernel for few rows


def quantize(x: torch.Tensor) -> Float8Rows:
    """`quantize_rows`, in one pass where Triton and a GPU are there."""
    if not x.is_cuda or not has_triton():
        return quantize_rows(x)
    from h3serve.models.kernels.elementwise_triton import (
        quantize_rows as fused,  # here, since Triton comes with CUDA builds of torch only
    )

    return fused(x)


def use_float8(module: nn.Module, patterns: Sequence[str], dtype: torch.dtype) -> None:
    """Replaces the `nn.Linear`s of `module` whose names match one of `patterns` (fnmatch), one after another.

    Those with weights are quantized and their old weights freed; those on the meta device stay empty. `dtype`
    is what they give.
    """
    linears = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    for name in linears:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            path, _, leaf = name.rpartition(".")
            parent = module.get_submodule(path)
            setattr(parent, leaf, _quantized(parent.get_submodule(leaf), dtype))


def _quantized(linear: nn.Module, dtype: torch.dtype) -> Float8Linear:
    assert isinstance(linear, nn.Linear)
    layer = Float8Linear(linear, dtype)
    if not linear.weight.is_meta:
        layer.set_weight(linear.weight)
    return layer
