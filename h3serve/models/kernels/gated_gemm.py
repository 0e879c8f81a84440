"""SwiGLU inside the matrix product before it, by the GEMM kernels that come with FlashAttention-4 (`[fa4]`).

Gate and up never reach memory, and the product is of their float32 sums. Import this file only where
`attention.has_flash4` is true; float16 and bfloat16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from h3serve.models.kernels import elementwise_triton
from h3serve.models.kernels.elementwise import LinearInput


class Tile(NamedTuple):
    """Of the output, and whether two groups of warps take turns: one computes while the other one stores.

    `swizzle`: size of the groups of tiles computed one after another, so that their operands are still in the cache.
    """

    rows: int
    columns: int
    pingpong: bool
    swizzle: int = 8


TRANSFORMER_TILE = Tile(256, 192, pingpong=False)  # docs/speed.md: of twelve none makes a step 0.3 % quicker
DECODER_TILE = Tile(128, 192, pingpong=True, swizzle=32)


def gated_linear(x: LinearInput, layer: nn.Module) -> LinearInput:
    """`elementwise.gated_linear` with one rounding; other layers go through `elementwise_triton.gated_linear`.

    So do layers with hooks: adapters add to the product itself.
    """
    if type(layer) is not nn.Linear or not isinstance(x, torch.Tensor) or layer._forward_hooks:
        return elementwise_triton.gated_linear(x, layer)
    return _product(x, layer, TRANSFORMER_TILE)


def gated_linear_batched(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """`elementwise.gated_linear` likewise, on [B, N, in]."""
    assert isinstance(layer, nn.Linear)
    return _product(x.flatten(0, 1), layer, DECODER_TILE).unflatten(0, x.shape[:2])


def _product(x: torch.Tensor, layer: nn.Linear, tile: Tile) -> torch.Tensor:
    from quack.gemm_config import GemmConfig
    from quack.gemm_interface import gemm_act

    sizes = {"tile_m": tile.rows, "tile_n": tile.columns, "pingpong": tile.pingpong, "max_swizzle_size": tile.swizzle}
    config = GemmConfig(**sizes, cluster_m=2, cluster_n=1, is_dynamic_persistent=False)
    halves = ("B",) if layer.bias is None else ("B", "bias")  # [gate; up], not gate and up in turn
    _, out = gemm_act(
        x,
        layer.weight.t(),
        bias=layer.bias,
        activation="swiglu",
        store_preact=False,
        config=config,
        concat_layout=halves,
    )
    return out
