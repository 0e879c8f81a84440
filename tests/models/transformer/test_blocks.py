"""Each part of a block beside spec/transformer.md 2.2, 2.5 and 2.6, written out in float64 numpy.

The rows are so small that every epsilon counts, and each weight is drawn for itself, so that no two can be exchanged.
"""

import numpy as np
import pytest
import torch
from torch import nn

from h3serve.models.kernels.attention import sdpa
from h3serve.models.kernels.elementwise import PLAIN
from h3serve.models.transformer.blocks import Block, FinalLayer, RefinerBlock, TokenRefiner
from h3serve.models.transformer.transformer import rope_tables
from h3serve.models.transformer.transformer_config import TransformerConfig

CONFIG = TransformerConfig(
    hidden_size=24, num_layers=1, num_refiner_layers=2, num_attention_heads=2, attention_head_dim=16, ffn_dim=20,
    in_channels=2, audio_in_channels=3, rope_freq_dim=2, norm_eps=1e-5, qk_norm_eps=3e-5, final_norm_eps=7e-5,
)  # fmt: skip
ROWS, SETS = 7, 6  # rows of the sequence, rows of the modulation table
Array = np.ndarray


def drawn(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.3 * drawn if "norm" in name else drawn / parameter.shape[-1] ** 0.5
    return module.requires_grad_(False)


def rows(*shape: int, seed: int = 1, size: float = 1e-2) -> torch.Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(module: nn.Module) -> dict[str, Array]:
    return {name: value.double().numpy() for name, value in module.state_dict().items()}


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def turned(x: Array, positions: Array) -> Array:
    """Each axis of the position turns its own pairs (d, d + 6) of a head; four numbers of 16 are left alone."""
    frequencies = CONFIG.rope_theta ** -(np.arange(2) / 2)
    angles = (positions[:, :, None] * frequencies).reshape(len(x), 1, 6)
    first, second, rest = x[..., :6], x[..., 6:12], x[..., 12:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def attention(x: Array, w: dict[str, Array], positions: Array | None) -> Array:
    q, k, v = (x @ w["attn.qkv_proj.weight"].T).reshape(len(x), 3, 2, 16).transpose(1, 0, 2, 3)
    q, k = (rms_norm(part, w[f"attn.{name}_norm.weight"], 3e-5) for part, name in ((q, "q"), (k, "k")))
    if positions is not None:
        q, k = turned(q, positions), turned(k, positions)
    scores = np.einsum("shd,thd->hst", q, k) / 4  # the root of a head's width
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hst,thd->shd", shares / shares.sum(-1, keepdims=True), v)
    return mixed.reshape(len(x), 32) @ w["attn.out_proj.weight"].T


def mlp(x: Array, w: dict[str, Array]) -> Array:
    gate, up = np.split(x @ w["mlp.fc1.weight"].T, 2, axis=-1)
    return (silu(gate) * up) @ w["mlp.fc2.weight"].T


def refined(x: Array, w: dict[str, Array]) -> Array:
    x = x + attention(rms_norm(x, w["norm1.weight"], 1e-5), w, None)
    return x + mlp(rms_norm(x, w["norm2.weight"], 1e-5), w)


def close(found: torch.Tensor, expected: Array) -> None:
    assert np.abs(found.double().numpy() - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_block() -> None:
    block, x, table = drawn(Block(CONFIG)), rows(ROWS, 24), rows(SETS, 6, 24, seed=2, size=0.7)
    index = torch.tensor([3, 0, 5, 5, 1, 2, 4])
    positions = rows(ROWS, 3, seed=3, size=5.0).double()
    found = block(x, table, index=index, rope=rope_tables(positions, CONFIG, torch.float32), attention=sdpa, ops=PLAIN)
    w, x = weights(block), x.double().numpy()
    shift1, scale1, gate1, shift2, scale2, gate2 = table.double().numpy()[index].transpose(1, 0, 2)
    h = rms_norm(x, w["norm1.weight"], 1e-5) * (1 + scale1) + shift1
    x = x + gate1 * attention(h, w, positions.float().double().numpy())
    h = rms_norm(x, w["norm2.weight"], 1e-5) * (1 + scale2) + shift2
    close(found, x + gate2 * mlp(h, w))


def test_a_block_of_the_refiner() -> None:
    block, x = drawn(RefinerBlock(CONFIG)), rows(ROWS, 24)
    close(block(x), refined(x.double().numpy(), weights(block)))


def test_the_refiner_ends_with_its_norm() -> None:
    refiner, x = drawn(TokenRefiner(CONFIG)), rows(ROWS, 24)
    w, h = weights(refiner), x.double().numpy()
    for layer in range(2):
        head = f"blocks.{layer}."
        h = refined(h, {name.removeprefix(head): value for name, value in w.items() if name.startswith(head)})
    close(refiner(x), rms_norm(h, w["final_norm.weight"], 7e-5))


@pytest.mark.parametrize("modality", [0, 1])
def test_the_final_layer(modality: int) -> None:
    layer, x, table = drawn(FinalLayer(CONFIG)), rows(ROWS, 24), rows(2, 2, 24, seed=4, size=0.7)
    index = torch.tensor([1, 0, 1, 1, 0, 0, 1])
    w, (shift, scale) = weights(layer), table.double().numpy()[index].transpose(1, 0, 2)
    h = rms_norm(x.double().numpy(), w["norm.weight"], 7e-5) * (1 + scale) + shift
    name = ("video_out", "audio_out")[modality]
    close(layer(x, table, index=index)[modality], h @ w[f"{name}.weight"].T + w[f"{name}.bias"])
