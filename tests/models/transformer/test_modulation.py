import math

import torch

from h3serve.models.transformer.denoiser import to_compute_dtype
from h3serve.models.transformer.modulation import sinusoid
from tests.models.tiny_transformer import TINY, tiny_denoiser

TIMESTEPS = torch.tensor([0.0, 0.4321, 0.999, 1.0])


def test_sinusoid_cosines_first_and_unscaled() -> None:
    t = 0.4321
    row = sinusoid(torch.tensor([t]), 256)[0]
    angles = [t * math.exp(-math.log(10000) * i / 128) for i in range(128)]
    expected = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    assert torch.allclose(row, expected, atol=1e-6)


def test_tables_by_definition() -> None:
    """Row 3m + modality holds, for each of six vectors, that slice of the projection of t_m."""
    network = tiny_denoiser().modulation
    tables = network(TIMESTEPS)
    assert tables.blocks.shape == (TINY.num_layers, 12, 6, 64)
    assert tables.final.shape == (4, 2, 64)
    embedding = network.embed(TIMESTEPS)
    for layer, block in enumerate(network.blocks):
        linear = block.adaln_proj.linear
        for m in range(4):
            flat = linear.weight @ embedding[m] + linear.bias
            for modality in range(3):
                start = modality * 6 * 64
                expected = flat[start : start + 384].view(6, 64)
                assert torch.allclose(tables.blocks[layer][3 * m + modality], expected, atol=1e-5)
    last = network.final_layer.adaln_proj.linear
    expected = (embedding @ last.weight.T + last.bias).view(4, 2, 64)
    assert torch.allclose(tables.final, expected, atol=1e-5)


def test_timesteps_do_not_mix() -> None:
    network = tiny_denoiser().modulation
    together = network(TIMESTEPS)
    for m, t in enumerate(TIMESTEPS):
        alone = network(t[None])
        assert torch.allclose(together.blocks[:, 3 * m : 3 * m + 3], alone.blocks, atol=1e-5)
        assert torch.allclose(together.final[m], alone.final[0], atol=1e-5)


def test_layer_by_layer_is_the_same() -> None:
    network = tiny_denoiser().modulation
    tables, embedding = network(TIMESTEPS), network.embed(TIMESTEPS)
    for layer in range(TINY.num_layers):
        assert torch.equal(network.project_layer(layer, embedding), tables.blocks[layer])
    assert torch.equal(network.project_final(embedding), tables.final)


def test_embedding_is_rounded_once_after_the_silu() -> None:
    full = tiny_denoiser()
    exact = full.modulation.embed(TIMESTEPS)
    half = to_compute_dtype(full, torch.bfloat16).modulation
    assert torch.equal(half.embed(TIMESTEPS), exact.bfloat16())
    assert half(TIMESTEPS).blocks.dtype == half(TIMESTEPS).final.dtype == torch.bfloat16


def test_the_embedding_is_two_layers_with_a_silu_after_each() -> None:
    """spec/transformer.md 2.3, in float64."""
    network = tiny_denoiser().modulation
    first, second = network.time_embedder.proj_in, network.time_embedder.proj_out
    x = sinusoid(TIMESTEPS, network.time_embedder.freq_dim).double()
    for layer in (first, second):
        x = x @ layer.weight.double().T + layer.bias.double()
        x = x / (1 + (-x).exp())
    assert torch.allclose(network.embed(TIMESTEPS).double(), x, atol=1e-5)
