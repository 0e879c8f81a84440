"""8-bit rows and linear layers: what rounding to e4m3 may cost, and no more."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from h3serve.models.kernels.float8_linear import Float8Linear, use_float8
from h3serve.models.kernels.float8_rows import FLOAT8, Float8Rows, quantize_rows
from h3serve.models.transformer.denoiser import FLOAT8_LINEARS, to_compute_dtype
from tests.models.tiny_transformer import tiny_denoiser, tiny_request

HALF_STEP = 2.0**-4  # relative; e4m3 has 3 bits after the point


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact.double()).norm() / exact.double().norm())


def test_rows_keep_every_value_to_half_a_step() -> None:
    x = draw(31, 96) * torch.logspace(-6, 6, 31)[:, None]
    rows = quantize_rows(x)
    assert rows.values.dtype == FLOAT8 and rows.scale.shape == (31, 1)
    assert torch.equal(rows.values.float().abs().amax(1), torch.full((31,), 448.0))  # e4m3: (2 - 2^-2) * 2^8
    smallest_step = rows.scale * 2.0**-10  # half of it: below, values are evenly spaced
    assert ((rows.float() - x).abs() <= torch.maximum(HALF_STEP * x.abs(), smallest_step) * 1.0001).all()


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(quantize_rows(torch.zeros(3, 16)).float(), torch.zeros(3, 16))


@pytest.mark.parametrize("bias", [False, True])
def test_linear(bias: bool) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(256, 96, bias=bias).requires_grad_(False)
    model = nn.Sequential(linear, nn.Linear(96, 8)).requires_grad_(False)
    use_float8(model, ("0",), torch.float32)
    layer = model[0]
    assert isinstance(layer, Float8Linear) and type(model[1]) is nn.Linear
    x = draw(2, 37, 256)
    result = layer(x)
    assert result.shape == (2, 37, 96)
    assert 0.01 < distance(result, linear(x)) < 0.06
    rows = quantize_rows(x.flatten(0, 1))
    assert torch.equal(layer(rows).view_as(result), result)
    # The layer itself adds no error to that of its rounded operands.
    exact = F.linear(rows.float().double(), Float8Rows(layer.weight, layer.weight_scale).float().double())
    assert distance(result.flatten(0, 1), exact + (0 if linear.bias is None else linear.bias)) < 1e-6


def test_a_layer_made_on_meta_is_filled_later() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32, 16, bias=False))
    use_float8(model, ("*",), torch.bfloat16)
    assert list(model.state_dict()) == ["0.weight"] and model[0].weight_scale.is_meta
    weight = draw(16, 32)
    model[0].set_weight(weight)
    assert not model[0].weight_scale.is_meta
    assert distance(model(torch.eye(32)).T, weight) < 0.04


def test_denoiser_keeps_its_islands() -> None:
    denoiser = to_compute_dtype(tiny_denoiser(), torch.bfloat16)
    before = {name: parameter.dtype for name, parameter in denoiser.named_parameters()}
    use_float8(denoiser, FLOAT8_LINEARS, torch.bfloat16)
    after = {name: parameter.dtype for name, parameter in denoiser.named_parameters()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        f"transformer.blocks.{i}.{name}.weight"
        for i in range(denoiser.config.num_layers)
        for name in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
    }


def test_whole_transformer() -> None:
    denoiser, request = tiny_denoiser(), tiny_request()
    exact = torch.cat([velocity.flatten() for velocity in request.run(denoiser)])
    use_float8(denoiser, FLOAT8_LINEARS, torch.float32)
    velocity = torch.cat([velocity.flatten() for velocity in request.run(denoiser)])
    assert 0.005 < distance(velocity, exact) < 0.1
