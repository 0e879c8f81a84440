import torch

from h3serve.models.kernels.elementwise import apply_rope
from h3serve.models.transformer.transformer import inverse_frequencies, rope_tables
from h3serve.models.transformer.transformer_config import TransformerConfig

CONFIG = TransformerConfig()


def rotated(x: torch.Tensor, position: tuple[float, float, float]) -> torch.Tensor:
    positions = torch.tensor([position], dtype=torch.float64)
    return apply_rope(x[None, None], rope_tables(positions, CONFIG, torch.float32))[0, 0]


def test_frequencies() -> None:
    frequencies = inverse_frequencies(CONFIG)
    expected = 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    assert frequencies.dtype == torch.float32
    assert torch.allclose(frequencies.double(), expected, rtol=1e-6, atol=0)


def test_pairs_and_axes() -> None:
    """Dim d turns with d + 48: 0..15 by time, 16..31 by height, 32..47 by width; 96.. stay."""
    x = torch.randn(128, generator=torch.Generator().manual_seed(0))
    for axis in range(3):
        position = [0.0, 0.0, 0.0]
        position[axis] = 0.7
        turned = rotated(x, tuple(position))
        angle = 0.7 * 10000.0 ** (-torch.arange(16) / 16)
        d = torch.arange(16) + 16 * axis
        expected = x.clone()
        expected[d] = x[d] * angle.cos() - x[d + 48] * angle.sin()
        expected[d + 48] = x[d + 48] * angle.cos() + x[d] * angle.sin()
        assert torch.allclose(turned, expected, atol=1e-6)
        assert torch.equal(turned[96:], x[96:])


def test_products_depend_on_differences() -> None:
    q, k = torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    here = rotated(q, (5, 2, 3)) @ rotated(k, (1, 4, 3.5))
    there = rotated(q, (105, 32, 13)) @ rotated(k, (101, 34, 13.5))
    assert torch.allclose(here, there, atol=1e-3)


def test_long_positions_keep_their_fraction() -> None:
    """Positions of several thousand with thirds of a unit: float32, then rounded only as cos and sin."""
    positions = torch.tensor([[4321 + 5 / 3, 0.0, 0.0]], dtype=torch.float64)
    rope = rope_tables(positions, CONFIG, torch.bfloat16)
    exact = (positions[0, 0].float() * inverse_frequencies(CONFIG)).cos().bfloat16()
    assert rope.cos.shape == rope.sin.shape == (1, 48)
    assert torch.equal(rope.cos[0, :16], exact)
