"""The constant under every norm's root, at inputs so small that it decides: expected values by numpy's float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from h3serve.models.audio_vae.audio_vae import AudioVAE, AudioVAEConfig
from h3serve.models.kernels import elementwise
from h3serve.models.kernels.elementwise import QKV, Rope
from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae import decoder_ops
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.weights.demo import demo_sizes
from tests.models.tiny_transformer import TINY
from tests.models.tiny_video_vae import CONFIG
from tests.paths import official

SMALL = 1e-3  # deviation of the inputs: their mean square is below every constant here
BLOCK, QK, LAST = 2e-5, 3e-4, 4e-3  # three constants of one network, no two alike
Array = NDArray[np.float64]


def small(*shape: int) -> torch.Tensor:
    return SMALL * torch.randn(shape, generator=torch.Generator().manual_seed(0))


def rms(x: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def layer_norm(x: Array, eps: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def close(found: torch.Tensor, expected: Array) -> None:
    np.testing.assert_allclose(found.double().cpu().numpy(), expected, rtol=2e-5, atol=1e-9)


def check_norms(
    network: nn.Module, kind: str, formula: Callable[[Array, float], Array], eps_of: Callable[[str], float]
) -> int:
    """Every layer whose class is called so, at gains of 1; returns how many there are."""
    layers = {name: layer for name, layer in network.named_modules() if type(layer).__name__ == kind}
    for name, layer in layers.items():
        nn.init.ones_(layer.weight)
        x = small(3, layer.weight.shape[0])
        close(layer(x), formula(x.double().numpy(), eps_of(name)))
    return len(layers)


@torch.no_grad()
def test_transformer() -> None:
    def eps_of(name: str) -> float:
        if ".q_norm" in name or ".k_norm" in name:
            return QK
        return LAST if name.endswith(("final_norm", "final_layer.norm")) else BLOCK

    config = replace(TINY, norm_eps=BLOCK, qk_norm_eps=QK, final_norm_eps=LAST)
    blocks = config.num_layers + config.num_refiner_layers
    assert check_norms(Denoiser(config), "RMSNorm", rms, eps_of) == 4 * blocks + 2


@torch.no_grad()
def test_text_encoder() -> None:
    values = demo_sizes.text_encoder({name: i for i, name in enumerate(_TOKENS)})
    values["text_config"]["rms_norm_eps"] = QK
    encoder = TextEncoder(TextEncoderConfig.from_dict(values))
    assert check_norms(encoder, "Qwen3VLTextRMSNorm", rms, lambda _: QK) == 4 * 50


_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>", "<|endoftext|>")


@torch.no_grad()
def test_video_vae() -> None:
    config = replace(CONFIG, decoder_eps=QK, norm_eps=BLOCK)
    vae = VideoVAE(config)
    assert check_norms(vae, "RMSNorm", rms, lambda _: QK) == 2 * config.decoder_layers
    assert check_norms(vae, "LayerNorm", layer_norm, lambda _: QK) == 1
    layers = [layer for layer in vae.modules() if type(layer).__name__ == "FrameGroupNorm"]
    assert len(layers) == 2 * config.blocks_per_level * len(config.channels) + 1
    for layer in layers:
        channels, frames = layer.weight.shape[0], small(1, layer.weight.shape[0], 2, 2, 2)
        grouped = frames.double().numpy().reshape(layer.num_groups, channels // layer.num_groups, 2, 4)
        by_frame = grouped.transpose(2, 0, 1, 3).reshape(2, layer.num_groups, -1)
        expected = layer_norm(by_frame, BLOCK).reshape(2, layer.num_groups, -1, 4).transpose(1, 2, 0, 3)
        nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
        close(layer(frames), expected.reshape(frames.shape))


@torch.no_grad()
def test_video_decoder_s_queries_and_keys() -> None:
    seen: list[float] = []

    def spying(qkv: torch.Tensor, eps: float, rope: Rope) -> QKV:
        seen.append(eps)
        return decoder_ops.qk_norm_rope(qkv, eps, rope)

    vae = VideoVAE(replace(CONFIG, decoder_eps=QK))
    vae.decoder.ops = replace(vae.decoder.ops, qk_norm_rope=spying)
    vae.decoder(torch.zeros(1, 24, 2, 2, 2))
    assert seen == [QK] * CONFIG.decoder_layers
    check_decoder_qk(decoder_ops.qk_norm_rope, "cpu")


def check_decoder_qk(norm: Callable[..., QKV], device: str) -> None:
    """Without rotation; values are left as they are."""
    qkv, still = small(2, 5, 3, 2, 64), Rope(torch.ones(5, 24, device=device), torch.zeros(5, 24, device=device))
    q, k, v = norm(qkv.to(device, copy=True), QK, still)
    given = qkv.double().numpy()
    close(q, rms(given[:, :, 0], QK)), close(k, rms(given[:, :, 1], QK)), close(v, given[:, :, 2])


@torch.no_grad()
def test_audio_vae() -> None:
    statistics: dict[str, Any] = {"latents_mean": (0.0,) * 32, "latents_std": (1.0,) * 32}
    vae = AudioVAE(AudioVAEConfig(**statistics, encoder_dim=4, latent_dim=256, decoder_dim=128))
    assert check_norms(vae, "LayerNorm", layer_norm, lambda _: 1e-5) == 4  # spec/vae_audio.md 6.3


def test_fused_kernels() -> None:
    """On a CUDA device where there is one, in Triton's interpreter (tests/conftest.py) otherwise."""
    pytest.importorskip("triton")
    from h3serve.models.kernels import elementwise_triton
    from h3serve.models.video_vae import decoder_ops_triton, video_encoder_triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, index = small(7, 64).to(device), torch.zeros(7, dtype=torch.int64, device=device)
    table, given = torch.zeros(1, 64, device=device), small(7, 64).double().numpy()
    norm = nn.RMSNorm(64, QK, device=device).requires_grad_(False)
    for chosen in (elementwise_triton.FUSED, elementwise.PLAIN):
        close(chosen.norm_modulate(x, norm, table, table, index), rms(given, QK))  # type: ignore[arg-type]
        _, normed = chosen.gated_add_norm(x, table, index, x, norm, table, table)
        close(normed, rms(given, QK))  # type: ignore[arg-type]
    qkv, rope = small(7, 3, 2, 128), Rope(torch.ones(7, 48, device=device), torch.zeros(7, 48, device=device))
    heads = nn.RMSNorm(128, QK, device=device).requires_grad_(False)
    for chosen in (elementwise_triton.FUSED, elementwise.PLAIN):
        q, k, _ = chosen.qk_norm_rope(qkv.to(device, copy=True), heads, heads, rope)
        close(q, rms(qkv.double().numpy()[:, 0], QK)), close(k, rms(qkv.double().numpy()[:, 1], QK))
    close(decoder_ops_triton.FUSED.norm(x[None], norm, torch.float32)[0], rms(given, QK))
    still = torch.zeros(64, device=device)
    _, normed = decoder_ops_triton.FUSED.scaled_add_norm(x[None].clone(), x[None], still, norm)
    close(normed[0], rms(given, QK))
    check_decoder_qk(decoder_ops_triton.FUSED.qk_norm_rope, device)
    frames = small(1, 2, 4, 4, 64)
    _, inverse = video_encoder_triton.statistics(frames.to(device), nn.GroupNorm(1, 64, QK))
    close(inverse[:, 0], 1 / np.sqrt(frames.double().numpy().reshape(2, -1).var(1) + QK))


def test_the_release_s_constants() -> None:
    """spec/checkpoint.md 1.2, vae_video.md 5.1 and 5.3, text_encoder.md 7.1."""

    def read(file: str) -> dict[str, Any]:
        return json.loads((official() / file).read_text())

    for file in ("FL2VA/transformer/config.json", "transformer/config.json"):
        config = TransformerConfig.from_dict(read(file))
        assert (config.norm_eps, config.qk_norm_eps, config.final_norm_eps) == (1e-5, 1e-5, 1e-5)
    original = read("FL2VA/video_vae/source/config.json") | read("FL2VA/video_vae/config.json")
    for raw in (original, read("vae/config.json")):
        vae = VideoVAEConfig.from_dict(raw)
        assert (vae.norm_eps, vae.decoder_eps) == (1e-6, 1e-5)
    text = TextEncoderConfig.from_dict(read("FL2VA/text_encoder/config.json")).truncated().text_config
    assert text.rms_norm_eps == 1e-6
