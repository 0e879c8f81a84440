"""The reference ops against their formulas, one rounding at a time."""

import torch
from torch import nn

from h3serve.models.kernels import elementwise
from h3serve.models.kernels.elementwise import Rope

BF16 = torch.bfloat16


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def rounded(value: torch.Tensor) -> torch.Tensor:
    """One rounding to bfloat16, back in float32 for the next exact operation."""
    return value.to(BF16).float()


def rms_norm(width: int, seed: int) -> nn.RMSNorm:
    norm = nn.RMSNorm(width, eps=1e-5, dtype=BF16)
    norm.weight.data = 1 + 0.2 * draw(width, seed=seed)
    return norm.requires_grad_(False)


def normed(x: torch.Tensor, norm: nn.RMSNorm) -> torch.Tensor:
    x = x.float()
    return rounded(x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight.float())


def test_norm_modulate_rounds_after_every_operation() -> None:
    x, shift, scale = draw(33, 64, seed=1), draw(6, 64, seed=2), draw(6, 64, seed=3)
    index, norm = torch.arange(33) % 6, rms_norm(64, seed=4)
    factor = rounded(1 + scale.float())[index]
    expected = rounded(rounded(normed(x, norm) * factor) + shift.float()[index])
    assert torch.equal(elementwise.norm_modulate(x, norm, shift, scale, index).float(), expected)


def test_gated_add_rounds_after_every_operation() -> None:
    x, update, gate = draw(33, 64, seed=1), draw(33, 64, seed=2), draw(6, 64, seed=3)
    index = torch.arange(33) % 6
    expected = rounded(x.float() + rounded(gate.float()[index] * update.float()))
    assert torch.equal(elementwise.gated_add(x, gate, index, update).float(), expected)


def test_swiglu_gate_first_and_rounded() -> None:
    gate_up = draw(33, 96)
    gate, up = gate_up[:, :48].float(), gate_up[:, 48:].float()
    expected = rounded(rounded(gate * torch.sigmoid(gate)) * up)
    assert torch.equal(elementwise.swiglu(gate_up).float(), expected)


def test_heads_are_normed_then_turned_value_untouched() -> None:
    qkv = draw(9, 3, 2, 128)
    q_norm, k_norm = rms_norm(128, seed=1), rms_norm(128, seed=2)
    angles = torch.randn(9, 48, generator=torch.Generator().manual_seed(3))
    rope = Rope(angles.cos().to(BF16), angles.sin().to(BF16))
    q, k, v = elementwise.qk_norm_rope(qkv, q_norm, k_norm, rope)
    assert torch.equal(v, qkv[:, 2])
    for out, source, norm in ((q, qkv[:, 0], q_norm), (k, qkv[:, 1], k_norm)):
        x = normed(source, norm)
        cos, sin = rope.cos.float()[:, None], rope.sin.float()[:, None]
        first, second = x[..., :48], x[..., 48:96]
        assert torch.equal(out[..., :48].float(), rounded(rounded(first * cos) - rounded(second * sin)))
        assert torch.equal(out[..., 48:96].float(), rounded(rounded(second * cos) + rounded(first * sin)))
        assert torch.equal(out[..., 96:].float(), x[..., 96:])


def test_without_rope_only_the_norm() -> None:
    qkv = draw(9, 3, 2, 128)
    norm = rms_norm(128, seed=1)
    q, _, _ = elementwise.qk_norm_rope(qkv, norm, norm, None)
    assert torch.equal(q.float(), normed(qkv[:, 0], norm))
