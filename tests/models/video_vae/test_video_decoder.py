"""The ViT decoder: positions, suffix tokens, orders, and where float16 begins and ends."""

import math

import pytest
import torch
from torch import nn

from h3serve.models.kernels.elementwise import Rope, apply_rope
from h3serve.models.video_vae.video_decoder import Attention, FeedForward, VideoDecoder, rope_table
from h3serve.models.video_vae.video_vae import VideoVAE, to_compute_dtype
from tests.keymaps import fill
from tests.models.tiny_video_vae import CONFIG, tiny

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def decoder() -> VideoDecoder:
    decoder = VideoDecoder(CONFIG)
    fill(decoder, 5)
    return decoder


def test_rope_table_by_hand() -> None:
    cos, sin = rope_table((7, 2, 3), 5, config=CONFIG, dtype=torch.float32, device=CPU)
    assert cos.shape == sin.shape == (7 * 2 * 3 + 5, 24)
    token = 4 * 6 + 1 * 3 + 2  # t=4, y=1, x=2: last axis fastest
    coordinates = [2 * (i + 0.5) / n - 1 for i, n in ((4, 7), (1, 2), (2, 3))]
    angles = [2 * math.pi * coordinate * 100 ** (-j / 8) for coordinate in coordinates for j in range(8)]
    torch.testing.assert_close(cos[token], torch.tensor(angles).cos(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sin[token], torch.tensor(angles).sin(), atol=1e-6, rtol=0)
    assert (cos[-5:] == 1).all() and (sin[-5:] == 0).all()  # the suffix stands at the origin


def test_rope_coordinates_are_rounded_to_half() -> None:
    half = rope_table((7, 1, 1), 0, config=CONFIG, dtype=torch.float16, device=CPU)
    assert half[0].dtype == torch.float16
    coordinate = torch.tensor(1.5 / 7).half() * 2 - 1
    angle = (2 * math.pi * coordinate).half().float() * torch.tensor(100.0) ** -0.125
    assert half[1][1, 1] == angle.sin().half()
    exact = rope_table((7, 1, 1), 0, config=CONFIG, dtype=torch.float32, device=CPU)[1].half()
    assert not torch.equal(half[1], exact)


def test_rotation_leaves_the_last_quarter() -> None:
    x = torch.randn(1, 2, 3, 64)
    cos, sin = torch.zeros(2, 24), torch.ones(2, 24)  # a quarter turn: (a, b) -> (-b, a)
    turned = apply_rope(x, Rope(cos, sin))
    assert torch.equal(turned[..., :24], -x[..., 24:48])
    assert torch.equal(turned[..., 24:48], x[..., :24])
    assert torch.equal(turned[..., 48:], x[..., 48:])


def test_queries_and_keys_are_normalized_without_gain() -> None:
    attention = Attention(CONFIG)
    assert {name for name, _ in attention.named_parameters()} == {
        f"{linear}.{part}" for linear in ("to_qkv", "to_out") for part in ("weight", "bias")
    }
    x = torch.randn(1, 5, CONFIG.width)
    rope = rope_table((5, 1, 1), 0, config=CONFIG, dtype=torch.float32, device=CPU)
    before = attention(x, rope)
    attention.to_qkv.weight.data[: 2 * CONFIG.width] *= 7
    attention.to_qkv.bias.data[: 2 * CONFIG.width] *= 7
    torch.testing.assert_close(attention(x, rope), before, atol=1e-4, rtol=1e-3)


def test_feed_forward_is_gate_then_up() -> None:
    feed = FeedForward(CONFIG)
    x = torch.randn(1, 2, CONFIG.width)
    inner = 4 * CONFIG.width
    gate = x @ feed.w1.weight[:inner].T + feed.w1.bias[:inner]
    up = x @ feed.w1.weight[inner:].T + feed.w1.bias[inner:]
    torch.testing.assert_close(feed(x), feed.w2(gate * gate.sigmoid() * up))


@torch.no_grad()
def test_zero_token_and_registers_are_attended(decoder: VideoDecoder) -> None:
    latents = torch.randn(1, 24, 2, 2, 2)
    tokens = decoder._tokens(latents)
    assert tokens.shape == (1, 8 + 4 + 1, CONFIG.width)
    assert torch.equal(tokens[0, 8:12], decoder.register_tokens[0])
    assert (tokens[0, 12] == 0).all()
    before = decoder(latents)
    saved = decoder.register_tokens.data.clone()
    decoder.register_tokens.data += 1
    assert not torch.isclose(decoder(latents), before).all()
    decoder.register_tokens.data = saved


@torch.no_grad()
def test_patches_land_at_their_latent(decoder: VideoDecoder) -> None:
    """proj_out's 3072 numbers are (channel, frame, row, column) of one latent's block."""
    size = (2, 3, 5)
    patches = torch.randn(1, math.prod(size), 3 * 4 * 16 * 16)
    pixels = decoder._pixels(patches, size)
    assert pixels.shape == (1, 3, 8, 48, 80)
    block = patches[0, 1 * 15 + 2 * 5 + 3].view(3, 4, 16, 16)
    assert torch.equal(pixels[0, :, 4:8, 32:48, 48:64], block)


@pytest.fixture(scope="module")
def half_vae() -> VideoVAE:
    return to_compute_dtype(tiny(), torch.float16)


@torch.no_grad()
def test_half_precision_begins_and_ends_where_the_release_says(half_vae: VideoVAE) -> None:
    seen: dict[str, tuple[torch.dtype, torch.dtype]] = {}

    def record(name: str):
        def hook(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            seen[name] = (inputs[0].dtype, output.dtype)

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in half_vae.named_modules()]
    frames = half_vae.decode_all(torch.randn(1, 24, 7, 2, 2))
    for handle in handles:
        handle.remove()
    half, full = torch.float16, torch.float32
    block = "decoder.transformer_blocks.1"
    assert frames.dtype == full
    assert seen["post_quant_conv"] == (half, half)
    assert seen["decoder.x_embedder"] == (full, full)
    for linear in ("attn.to_qkv", "attn.to_out", "ff.w1", "ff.w2"):
        assert seen[f"{block}.{linear}"] == (half, half)
    for name in (block, f"{block}.norm1", f"{block}.norm2", "decoder.norm_out", "decoder.proj_out"):
        assert seen[name] == (full, full)


@torch.no_grad()
def test_half_precision_is_near_float32(half_vae: VideoVAE) -> None:
    latents = torch.randn(1, 24, 7, 4, 4)
    full, half = tiny().decode_all(latents), half_vae.decode_all(latents)
    error = (full - half).abs().max()
    assert 0 < error < 1e-2
