"""The activation's other ways give its numbers and its gradients."""

import pytest
import torch

from demo.train import alias_free
from h3serve.models.audio_vae.audio_decoder import AliasFree
from h3serve.models.audio_vae.audio_encoder import Snake


@pytest.mark.parametrize("formula", [alias_free.by_slices, alias_free.by_convolutions])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_same_numbers_and_gradients(formula: alias_free.Formula, length: int) -> None:
    torch.manual_seed(length)
    module = AliasFree(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, weight = torch.randn(2, 3, length, requires_grad=True), torch.randn(2, 3, length)
    results = []
    for way in (alias_free.PLAIN, alias_free.Way(formula)):
        alias_free.use(module, way)
        y = module(x)
        results.append((y, *torch.autograd.grad((y * weight).sum(), [x, *module.parameters()])))
    for expected, result in zip(*results, strict=True):
        assert torch.allclose(result, expected, atol=1e-5, rtol=1e-4)


def test_bend_is_the_encoders_snake() -> None:
    snake, x = Snake(3), torch.randn(2, 3, 8)
    torch.nn.init.uniform_(snake.alpha, 0.5, 2.0)
    expected = snake(x)
    alias_free.use(snake, alias_free.Way(bend=alias_free.bend))
    assert torch.allclose(snake(x), expected)
