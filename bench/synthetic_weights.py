"""Networks of the released size with random weights, built on the device: for measuring, where no weights are.

Values are drawn, never zero: zeros run faster than real data and hide what is not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.weights.formats.components import RECIPES, build_on_meta
from h3serve.weights.formats.released_sizes import RELEASED


@torch.no_grad()
def synthetic_component(
    name: str,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
    config: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    """A component as `load_component` would give it, without files.

    Matrices are normal with variance 1/inputs (residual outputs smaller, so that depth neither
    explodes nor dies), gains lie around 1, biases around 0.
    """
    recipe = RECIPES[name]
    module = build_on_meta(recipe, recipe.read_config(dict(RELEASED[name] if config is None else config)))
    generator = torch.Generator(device).manual_seed(seed)
    for target, slot in module.state_dict().items():
        value = torch.empty(slot.shape, dtype=recipe.dtype_of(target, dtype), device=device)
        _draw(value, target, generator)
        _place(module, target, value)
    if isinstance(module, TextEncoder):
        module.reset_buffers(device)
    return module


def _draw(value: torch.Tensor, name: str, generator: torch.Generator) -> None:
    if name.endswith(("latents_mean", "logs_proj.bias", "zero_k_bias")):
        value.zero_()
    elif name.endswith("latents_std"):
        value.fill_(1.0)
    elif value.ndim <= 1 or name.endswith((".alpha", ".beta", "weight_g")):
        gain = name.endswith(("weight", "weight_g", "scale1", "scale2"))
        value.normal_(1.0 if gain else 0.0, 0.1, generator=generator)
    else:
        value.normal_(0.0, _scale(name) / math.sqrt(value[0].numel()), generator=generator)


def _scale(name: str) -> float:
    residual = name.endswith(
        ("out_proj.weight", "o_proj.weight", "fc2.weight", "down_proj.weight", "to_out.weight", "w2.weight")
    )
    return 0.3 if residual else 1.0


def _place(module: nn.Module, name: str, value: torch.Tensor) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        owner._buffers[leaf] = value
