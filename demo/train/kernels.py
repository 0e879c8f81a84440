"""How a training batch computes what inference computes: many samples' rows in one sequence, and gradients.

Attention stays within segments of the sequence, and a block's shifts, scales and gates come as one entry per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from h3serve.models.kernels.attention import sdpa
from h3serve.models.kernels.elementwise import QKV, Ops, Rope, apply_rope, swiglu

Varlen = Callable[[Tensor, Tensor, Tensor, "Segments"], Tensor]


@dataclass(frozen=True)
class Segments:
    """Where the samples of a sequence begin and end: int32 [n+1] on the device, and the lengths on the host.

    None is longer than `longest`.
    """

    bounds: Tensor
    lengths: tuple[int, ...]
    longest: int


def one_by_one(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Each segment through `sdpa`: the reference, and what a CPU uses."""
    parts = (part.split(segments.lengths) for part in (q, k, v))
    return torch.cat([sdpa(*part) for part in zip(*parts, strict=True) if len(part[0])])


def varlen(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """torch's variable-length flash attention: CUDA, half precision."""
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = segments.bounds, segments.longest
    out = varlen_attn(q, k, v, bounds, bounds, longest, longest)
    assert isinstance(out, Tensor)
    return out


def padded(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """All segments in one batch, padded to the longest, with a mask over the padding."""
    bounds, count, longest = segments.bounds.long(), len(segments.lengths), segments.longest
    lengths = bounds[1:] - bounds[:-1]
    place = torch.arange(longest, device=q.device)
    inside = place < lengths[:, None]  # [n, longest]
    row = torch.arange(len(q), device=q.device)
    sample = torch.searchsorted(bounds[1:], row, right=True)
    flat = sample * longest + row - bounds[sample]  # of every row, in the padded batch

    def pad(part: Tensor) -> Tensor:
        whole = part.new_zeros(count * longest, *part.shape[1:]).index_copy(0, flat, part)
        return whole.unflatten(0, (count, longest)).transpose(1, 2)

    out = F.scaled_dot_product_attention(pad(q), pad(k), pad(v), attn_mask=inside[:, None, None, :])
    return out.transpose(1, 2).flatten(0, 1).index_select(0, flat)


def choose_attention(device: torch.device, dtype: torch.dtype) -> Varlen:
    """The quickest that gives, forward and backward, what `one_by_one` gives on this device."""
    if device.type != "cuda" or dtype == torch.float32:
        return one_by_one
    for kernel in (varlen, padded):
        try:
            error = _difference(kernel, device, dtype)
        except Exception as problem:  # whatever a build of torch lacks
            print(f"attention {kernel.__name__}: {type(problem).__name__}: {problem}"[:400], flush=True)  # noqa: T201
            continue
        print(f"attention {kernel.__name__}: differs by {error:.4f}", flush=True)  # noqa: T201
        if error < 0.02:
            return kernel
    return one_by_one


def _difference(kernel: Varlen, device: torch.device, dtype: torch.dtype) -> float:
    """Largest relative difference of output and gradients from the reference."""
    generator = torch.Generator(device).manual_seed(1)
    lengths = (70, 333, 1, 128, 45)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    segments = Segments(bounds, lengths, max(lengths))
    qkv = torch.randn(sum(lengths), 3, 3, 128, device=device, generator=generator).to(dtype)
    weight = torch.randn(sum(lengths), 3, 128, device=device, generator=generator).to(dtype)

    def run(attention: Varlen) -> list[Tensor]:
        leaf = qkv.clone().requires_grad_()
        q, k, v = leaf.unbind(1)
        out = attention(*(part.contiguous() for part in (q, k, v)), segments)
        (gradient,) = torch.autograd.grad(out, leaf, weight)
        return [out.detach().float(), gradient.float()]

    pairs = zip(run(kernel), run(one_by_one), strict=True)
    errors = [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs]
    return max(errors) if all(error == error for error in errors) else float("inf")


class _Expand(torch.autograd.Function):
    """Rows of a table, one per row of the sequence; the table's gradient is summed by a matrix product.

    The gradient of `index_select` adds row by row in the rows' own dtype: in bfloat16 a sum of some hundreds stalls.
    """

    @staticmethod
    def forward(ctx: object, table: Tensor, index: Tensor, one_hot: Tensor) -> Tensor:
        ctx.one_hot = one_hot  # type: ignore[attr-defined]
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None, None]:
        summed = ctx.one_hot @ gradient.flatten(1)  # type: ignore[attr-defined]
        return summed.view(-1, *gradient.shape[1:]), None, None


class Expansion:
    """Which entry of a table each row of a sequence takes: index int64 [S], of so many entries."""

    def __init__(self, index: Tensor, entries: int, dtype: torch.dtype) -> None:
        self.index = index
        self.one_hot = (torch.arange(entries, device=index.device)[:, None] == index).to(dtype)

    def __call__(self, table: Tensor) -> Tensor:
        """[entries, ...] -> [S, ...]."""
        rows: Tensor = _Expand.apply(table, self.index, self.one_hot)
        return rows


def training_ops(wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function) -> Ops:
    """The element-wise pieces of a block as in `models/kernels/`, but shifts, scales and gates are [S, hidden].

    The index that a block hands over is not used. `wrap` may be `torch.compile`: all shapes stay the same.
    """
    fused_norm, fused_add, fused_add_norm, fused_heads, fused_gate = (
        wrap(function) for function in (_norm_modulate, _gated_add, _gated_add_norm, _qk_norm_rope, swiglu)
    )

    def norm_modulate(x: Tensor, norm: nn.RMSNorm, shift: Tensor, scale: Tensor, _: Any) -> Tensor:
        out: Tensor = fused_norm(x, norm.weight, shift, scale, norm.eps)
        return out

    def gated_add(x: Tensor, gate: Tensor, _: Any, update: Tensor) -> Tensor:
        out: Tensor = fused_add(x, gate, update)
        return out

    def gated_add_norm(
        x: Tensor, gate: Tensor, _: Any, update: Tensor, norm: nn.RMSNorm, shift: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = fused_add_norm(x, gate, update, norm.weight, shift, scale, norm.eps)
        return out

    def qk_norm_rope(qkv: Tensor, q_norm: nn.RMSNorm, k_norm: nn.RMSNorm, rope: Rope | None) -> QKV:
        assert rope is not None
        out: QKV = fused_heads(qkv, q_norm.weight, k_norm.weight, rope.cos, rope.sin, q_norm.eps)
        return out

    def gated_linear(x: Any, layer: nn.Module) -> Tensor:
        out: Tensor = fused_gate(layer(x))
        return out

    return Ops(norm_modulate, gated_add, gated_add_norm, qk_norm_rope, gated_linear)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _norm_modulate(x: Tensor, weight: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    return _norm(x, weight, eps) * (1 + scale) + shift


def _gated_add(x: Tensor, gate: Tensor, update: Tensor) -> Tensor:
    return x + gate * update


def _gated_add_norm(
    x: Tensor, gate: Tensor, update: Tensor, weight: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = x + gate * update
    return x, _norm_modulate(x, weight, shift, scale, eps)


def _qk_norm_rope(qkv: Tensor, q_gain: Tensor, k_gain: Tensor, cos: Tensor, sin: Tensor, eps: float) -> QKV:
    q, k, v = qkv.unbind(1)
    rope = Rope(cos, sin)
    return apply_rope(_norm(q, q_gain, eps), rope), apply_rope(_norm(k, k_gain, eps), rope), v.contiguous()
