"""Which kernels a quality tier runs the transformer with."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from h3serve.core.tasks import Quality
from h3serve.models.attention import fastest, sdpa
from h3serve.models.ops import PLAIN, Ops
from h3serve.models.transformer import Transformer

TIERS: tuple[Quality, ...] = ("exact", "lossless")  # `fast` needs FP8 linears, which are not built


def use_tier(transformer: Transformer, quality: Quality, device: torch.device) -> None:
    """Sets the transformer's attention and ops for a device; weights stay as they are.

    exact: torch's own kernels in the reference's order of roundings. lossless: fused kernels with fewer
    roundings where Triton and a GPU are there, else the same as exact.
    """
    if quality not in TIERS:
        raise ValueError(f"tier {quality} is not one of {TIERS}")
    transformer.attention, transformer.ops = sdpa, PLAIN
    if quality == "lossless":
        transformer.attention = fastest(device, transformer.compute_dtype)
        transformer.ops = _fused(device)


def _fused(device: torch.device) -> Ops:
    if device.type != "cuda" or find_spec("triton") is None:
        return PLAIN
    from h3serve.models.fused import FUSED  # here, since Triton comes with CUDA builds of torch only

    return FUSED
