"""8-bit layers on CUDA: the device's own matrix product against float32 arithmetic on the same rows."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_linear import Float8Linear, quantize, use_float8
from h3serve.models.kernels.float8_rows import Float8Rows
from h3serve.models.quality import use_quality
from h3serve.models.transformer.denoiser import FLOAT8_LINEARS, to_compute_dtype
from tests.models.tiny_transformer import tiny_denoiser, tiny_request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs 8-bit matrix units"
    ),
]


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("rows", [1, 37, 1037])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(rows: int, bias: bool) -> None:
    linear = nn.Linear(5376, 768, bias=bias, device="cuda", dtype=torch.bfloat16).requires_grad_(False)
    model = nn.Sequential(linear)
    use_float8(model, ("0",), torch.bfloat16)
    layer = model[0]
    assert isinstance(layer, Float8Linear)
    x = torch.randn(rows, 5376, device="cuda", dtype=torch.bfloat16)
    quantized = quantize(x)
    weight = Float8Rows(layer.weight, layer.weight_scale).float()
    exact = F.linear(quantized.float().double(), weight.double())
    exact = exact + linear.bias.double() if bias else exact
    assert distance(layer(x), exact) < 4e-3  # one rounding to bfloat16, and sums of the tensor cores
    assert 0.01 < distance(layer(x), linear(x)) < 0.06


def test_fast_tier_on_the_device() -> None:
    denoiser, request = tiny_denoiser().cuda(), tiny_request().to("cuda")
    exact = torch.cat([velocity.flatten() for velocity in request.run(denoiser)])
    to_compute_dtype(denoiser, torch.bfloat16)
    use_float8(denoiser, FLOAT8_LINEARS, torch.bfloat16)
    use_quality(denoiser.transformer, "fast", torch.device("cuda"))
    velocity = torch.cat([velocity.flatten() for velocity in request.run(denoiser)])
    assert 0.005 < distance(velocity, exact) < 0.1
