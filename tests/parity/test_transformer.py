"""Our transformer against diffusers' MiniMaxH3Transformer3DModel: the same weights, the same bits."""

from dataclasses import asdict, replace

import pytest
import torch

from h3serve.models.transformer.denoiser import Denoiser, key_map, param_dtype, to_compute_dtype
from h3serve.models.transformer.transformer_config import TransformerConfig
from tests.models.tiny_transformer import TINY, Packed, load, randomize, tiny_request

diffusers = pytest.importorskip("diffusers")

WIDE = replace(TINY, hidden_size=192, num_attention_heads=5, num_layers=2, ffn_dim=256)


def pair(config: TransformerConfig, dtype: torch.dtype) -> tuple[torch.nn.Module, Denoiser]:
    """diffusers' model and ours with the same weights, rounded after they were shared."""
    theirs = diffusers.MiniMaxH3Transformer3DModel(**asdict(config)).eval().requires_grad_(False)
    randomize(theirs, seed=11)
    ours = Denoiser(config).eval().requires_grad_(False)
    keys = key_map(config, "diffusers")
    load(ours, keys, theirs.state_dict())
    kept = {s for e in keys.entries for s in e.sources if param_dtype(e.target, dtype) != dtype}
    for name, parameter in theirs.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if name in kept else dtype)
    return theirs, to_compute_dtype(ours, dtype)


def run_theirs(model: torch.nn.Module, request: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    video, audio = model(
        request.video_rows[None],
        request.audio_rows[None],
        request.text_states[None],
        request.timesteps,
        request.timestep_index,
        request.tags,
        request.positions,
        request.video_index,
        request.audio_index,
        request.text_index,
        return_dict=False,
    )
    return video[0, request.condition_video_rows :], audio[0, request.condition_audio_rows :]


def stacking_keeps_bits(dtype: torch.dtype) -> bool:
    """Whether this CPU's GEMM gives a column the same bits alone and stacked with others."""
    x, a, b = torch.randn(3, 48, 192, generator=torch.Generator().manual_seed(0)).to(dtype)
    return torch.equal(x @ torch.cat([a, b]).T, torch.cat([x @ a.T, x @ b.T], dim=1))


@pytest.mark.parametrize("config", [TINY, WIDE], ids=["tiny", "wide"])
def test_float32(config: TransformerConfig) -> None:
    theirs, ours = pair(config, torch.float32)
    for seed in range(3):
        request = tiny_request(seed, config)
        for mine, other in zip(request.run(ours), run_theirs(theirs, request), strict=True):
            assert other.abs().max() > 0.1
            assert (mine - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", [TINY, WIDE], ids=["tiny", "wide"])
def test_same_bits(config: TransformerConfig, dtype: torch.dtype) -> None:
    """The same order of roundings: with the same kernels not one bit differs."""
    if not stacking_keeps_bits(dtype):
        pytest.skip("here one stacked GEMM rounds unlike several small ones")
    theirs, ours = pair(config, dtype)
    for seed in range(3):
        request = tiny_request(seed, config)
        request = replace(request, text_states=request.text_states.to(dtype))
        for mine, other in zip(request.run(ours), run_theirs(theirs, request), strict=True):
            assert torch.equal(mine, other)
