"""The statistics behind the warnings, on weights made to have or not to have what they look for."""

from __future__ import annotations

import pytest
import torch

from h3serve.models.key_map import split_heads_interleaved, swap_halves
from h3serve.weights.formats.row_order import gate_up_order, overall, qkv_order

HEADS, HEAD_DIM, WIDTH = 20, 8, 96
REORDER, RESTORE = split_heads_interleaved(HEADS, HEAD_DIM)


def qkv(seed: int, sizes: tuple[float, float, float]) -> torch.Tensor:
    """Stacked rows whose parts have different sizes, and every head a size of its own."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, HEADS, HEAD_DIM, WIDTH, generator=generator)
    heads = torch.exp(0.1 * torch.randn(3, HEADS, 1, 1, generator=generator))
    return (weight * heads * torch.tensor(sizes).view(3, 1, 1, 1)).reshape(-1, WIDTH)


@pytest.mark.parametrize("seed", range(5))
def test_qkv_in_each_order(seed: int) -> None:
    weight = qkv(seed, (1.0, 1.1, 0.6))
    assert qkv_order(weight, heads=HEADS)[0] == "as expected"
    assert qkv_order(RESTORE(weight), heads=HEADS) == ("against", "the rows look grouped per head")
    assert qkv_order(REORDER(weight), heads=HEADS) == (
        "against",
        "the rows look taken apart per head though stacked",
    )


@pytest.mark.parametrize("seed", range(20))
def test_qkv_of_one_size_gives_no_opinion(seed: int) -> None:
    assert qkv_order(qkv(seed, (1.0, 1.0, 1.0)), heads=HEADS)[0] == "none"


def test_few_heads_give_no_opinion() -> None:
    assert qkv_order(torch.randn(3 * 4 * 8, 16), heads=4)[0] == "none"


@pytest.mark.parametrize("seed", range(20))
def test_gate_and_up(seed: int) -> None:
    rows = torch.randn(2 * 160, 64, generator=torch.Generator().manual_seed(seed))
    assert gate_up_order(rows)[0] == "none"
    rows[:160] -= 0.3
    assert gate_up_order(rows)[0] == "as expected"
    assert gate_up_order(swap_halves(rows))[0] == "against"


def test_layers_have_to_agree() -> None:
    assert overall(["none", "against", "against"]) == "against"
    assert overall(["as expected", "against"]) == "none"
    assert overall([]) == "none"
