"""Attention kernels: callables on q, k, v of one packed sequence, full attention among all rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch.nn import functional as F

# q, k, v -> out, all [S, heads, head_dim]; the last axis is contiguous, the others need not be.
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """torch's scaled_dot_product_attention, with the kernel torch chooses."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def flash4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention-4 (optional extra `fa4`): half precision, Hopper and Blackwell."""
    from flash_attn.cute import flash_attn_func

    return flash_attn_func(q[None], k[None], v[None])[0][0]


def fastest(device: torch.device, dtype: torch.dtype) -> Attention:
    """The quickest kernel that is installed and made for this device; docs/speed.md has the measurements."""
    if device.type != "cuda" or dtype == torch.float32:
        return sdpa
    major, _ = torch.cuda.get_device_capability(device)
    return flash4 if major in (9, 10) and _has_flash4() else sdpa


def available(device: torch.device, dtype: torch.dtype) -> dict[str, Attention]:
    """Every kernel that runs here, by name."""
    best = fastest(device, dtype)
    return {"sdpa": sdpa} if best is sdpa else {"sdpa": sdpa, "flash4": best}


def _has_flash4() -> bool:
    try:
        return find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        return False
