"""The video decoder's fused ops against its plain ones, in float16 and float32.

On a CUDA device where there is one, in Triton's interpreter (tests/conftest.py) otherwise.
"""

import pytest
import torch
from torch import nn

from h3serve.models.kernels import elementwise
from h3serve.models.kernels.elementwise import Rope
from h3serve.models.video_vae import decoder_ops
from h3serve.models.video_vae.video_vae import to_compute_dtype
from tests.models.tiny_video_vae import tiny

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from h3serve.models.video_vae.decoder_ops_triton import FUSED  # noqa: E402

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def check(fused: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, slack: float = 1.001) -> None:
    """No further from the float32 result than the plain one is."""
    assert fused.dtype == plain.dtype and fused.shape == plain.shape and torch.isfinite(fused).all()
    error, allowed = ((value.float() - exact).norm() / exact.norm() for value in (fused, plain))
    assert error <= max(slack * allowed, 2e-6)


def layer(width: int) -> nn.RMSNorm:
    norm = nn.RMSNorm(width, eps=1e-5, device=DEVICE).requires_grad_(False)
    norm.weight.copy_(1 + 0.2 * draw(width, seed=9))
    return norm


@DTYPES
@pytest.mark.parametrize("width", [64, 200])
def test_norms_and_sums(width: int, dtype: torch.dtype) -> None:
    x, update = draw(2, 19, width), draw(2, 19, width, dtype=dtype, seed=1)
    scale, norm = draw(width, seed=2), layer(width)
    check(FUSED.norm(x, norm, dtype), decoder_ops.norm(x, norm, dtype), norm(x))
    total, normed = decoder_ops.scaled_add_norm(x, update, scale, norm)
    own = x.clone()
    fused_total, fused_normed = FUSED.scaled_add_norm(own, update, scale, norm)
    assert fused_total is own
    check(fused_total, total, total)
    check(fused_normed, normed, norm(total))
    check(FUSED.scaled_add(x.clone(), update, scale), total, total)


@DTYPES
def test_qk_norm_rope(dtype: torch.dtype) -> None:
    qkv = draw(3, 11, 3, 2, 64, dtype=dtype)
    angles = draw(11, 24, seed=3)
    rope = Rope(angles.cos().to(dtype), angles.sin().to(dtype))
    plain = decoder_ops.qk_norm_rope(qkv, 1e-5, rope)
    exact = decoder_ops.qk_norm_rope(qkv.float(), 1e-5, Rope(rope[0].float(), rope[1].float()))
    fused = FUSED.qk_norm_rope(qkv.clone(), 1e-5, rope)
    for parts in zip(fused, plain, exact, strict=True):
        check(*parts)


@DTYPES
def test_gated_linear(dtype: torch.dtype) -> None:
    gate_up, layer = draw(2, 7, 2 * 96, dtype=dtype), nn.Identity()
    plain, exact = elementwise.gated_linear(gate_up, layer), elementwise.gated_linear(gate_up.float(), layer)
    check(FUSED.gated_linear(gate_up, layer), plain, exact)


@DTYPES
def test_whole_decoder(dtype: torch.dtype) -> None:
    vae, latents = tiny().to(DEVICE), draw(2, 24, 7, 2, 3)
    exact = vae.decoder(vae.post_quant_conv(latents))
    to_compute_dtype(vae, dtype)
    plain = vae._decode_tile(latents)
    vae.decoder.ops = FUSED
    check(vae._decode_tile(latents), plain, exact, slack=1.2)  # a small network: chance decides the last bits
