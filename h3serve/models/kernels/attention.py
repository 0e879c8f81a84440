"""Attention kernels: callables on q, k, v of one packed sequence, full attention among all rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from h3serve.models.kernels.optional_packages import flash4_loads, has_triton

# q, k, v -> out, all [S, heads, head_dim]; the last axis is contiguous, the others need not be.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_KEYS = 128  # per tile of cuDNN's kernel; a last tile that is not full slows all others down
_SAMPLE = 4096  # rows that the mean key is taken of
_WORTH_PADDING = 4 * _SAMPLE  # rows; below, attention is no large part of a step
_FLASH4_TILES = {9: ((192, 128), False)}  # by major capability, where another than its own choice is quicker


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's scaled_dot_product_attention, with the kernel torch chooses."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def padded_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """cuDNN's kernel on whole tiles of keys; what the padding adds to the sums is taken out again.

    The padding is the mean of real keys, with values of zero: by Jensen's inequality it never has more than
    3 % of a row's weight, whatever the queries are. CUDA and Triton, bfloat16 or float16.
    """
    count = -len(k) % _KEYS
    if count == 0 or len(k) < _WORTH_PADDING:
        return sdpa(q, k, v)
    from h3serve.models.kernels.attention_padding import (
        without_padding,  # here, since Triton comes with CUDA builds of torch only
    )

    mean = mean_key(k)
    k = torch.cat([k, mean.expand(count, -1, -1)])
    v = torch.cat([v, v.new_zeros(1, 1, 1).expand(count, *v.shape[1:])])
    rows = (part.transpose(0, 1)[None] for part in (q, k, v))
    out, logsumexp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*rows, None, True)
    return without_padding(out[0].transpose(0, 1), logsumexp[0, :, :, 0], q=q, key=mean, count=count)


def mean_key(k: torch.Tensor) -> torch.Tensor:
    """The mean of the leading keys [S, heads, head_dim], as one more key [heads, head_dim]."""
    return k[:_SAMPLE].float().mean(0).to(k.dtype)


def flash4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention-4 (optional extra `fa4`): half precision, Hopper and Blackwell."""
    return flash4_batched(q[None], k[None], v[None])[0]


def flash4_batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same for q, k, v [B, S, heads, head_dim]."""
    from flash_attn.cute.interface import _flash_attn_fwd

    major, _ = torch.cuda.get_device_capability(q.device)
    tile, in_registers = _FLASH4_TILES.get(major, (None, None)) if q.shape[-1] == 128 else (None, None)
    return _flash_attn_fwd(q, k, v, tile_mn=tile, mma_pv_is_rs=in_registers)[0]


def fastest(device: torch.device, dtype: torch.dtype, *, extras: bool = True) -> Attention:
    """The quickest kernel that is installed and made for this device; docs/speed.md has the measurements."""
    return list(available(device, dtype, extras=extras).values())[-1]


def available(device: torch.device, dtype: torch.dtype, *, extras: bool = True) -> dict[str, Attention]:
    """Every kernel that runs here, by name, the quickest last; without `extras` those of torch and of this package."""
    kernels: dict[str, Attention] = {"sdpa": sdpa}
    if device.type != "cuda" or dtype == torch.float32:
        return kernels
    if torch.cuda.get_device_capability(device) == (9, 0) and has_triton():
        kernels["padded cuDNN"] = padded_cudnn
    if extras and has_flash4(device):
        kernels["FlashAttention-4"] = flash4
    return kernels


def eight_bits(device: torch.device, dtype: torch.dtype) -> Attention | None:
    """Attention on e4m3 operands, where it is quicker than on 16 bits: Hopper, with Triton. None elsewhere."""
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    if not hopper or dtype == torch.float32 or not has_triton():
        return None
    from h3serve.models.kernels.attention_float8 import (
        attention8,  # here, since Triton comes with CUDA builds of torch only
    )

    return attention8


def has_flash4(device: torch.device) -> bool:
    """Whether FlashAttention-4 and the products that come with it are installed and made for this CUDA device."""
    return flash4_loads() and torch.cuda.get_device_capability(device)[0] in (9, 10)
