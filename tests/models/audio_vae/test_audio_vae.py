"""The audio VAE against closed forms: everything that is easy to get wrong (spec/vae_audio.md 6.9)."""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from h3serve.core.errors import CheckpointError
from h3serve.models.audio_vae.audio_decoder import AliasFree, Downsample, SnakeBeta, Upsample, half_band_filter
from h3serve.models.audio_vae.audio_encoder import HeadPooledAttention, LatentProjection, Snake
from h3serve.models.audio_vae.audio_vae import AudioVAE, AudioVAEConfig, key_map, true_float32
from h3serve.models.audio_vae.weight_norm import ConvTranspose1d
from tests.paths import official

TINY = AudioVAEConfig(
    latents_mean=tuple(np.linspace(-0.4, 0.6, 32)),
    latents_std=tuple(np.linspace(1.4, 3.2, 32)),
    encoder_dim=2,
    latent_dim=64,
    num_attention_heads=2,
    decoder_dim=128,
)


@pytest.fixture(scope="module")
def vae() -> AudioVAE:
    """Random weights, its output brought below full scale: a clamped sound would hide mistakes."""
    torch.manual_seed(0)
    vae = AudioVAE(TINY).eval()
    with torch.no_grad():
        vae.decoder.conv_post.weight_g *= 2.0**-30
        vae.decoder.conv_post.weight_g *= 0.3 / vae.decode(torch.randn(12, 32)).abs().max()
    return vae


@pytest.fixture(scope="module")
def wave() -> torch.Tensor:
    return 0.3 * torch.randn(2, 4800, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def rows(vae: AudioVAE, wave: torch.Tensor) -> torch.Tensor:
    return vae.encode(wave)


# --- configuration -----------------------------------------------------------------------------


def released() -> list[dict]:
    folder = official() / "FL2VA" / "audio_vae"
    original = json.loads((folder / "config.json").read_text())
    sizes = json.loads((folder / "metadata.json").read_text())
    head = yaml.safe_load((folder / "config.yaml").read_text())
    diffusers = json.loads((official() / "audio_vae" / "config.json").read_text())
    return [diffusers, original, {**original, **sizes, **head}]


def test_both_spellings_of_the_release_are_one_network() -> None:
    first, *others = [AudioVAEConfig.from_dict(data) for data in released()]
    assert all(other == first for other in others)
    assert first.hop == 800 and first.latents_std[15] == 3.298670198067373
    with torch.device("meta"):
        network = AudioVAE(first)
    count = lambda m: sum(p.numel() for p in m.parameters())  # noqa: E731
    assert count(network) == 151_321_489
    parts = [count(m) for m in (network.encoder, network.pre_block, network.decoder)]
    assert parts == [73_714_816, 12_668_256, 64_868_721]


def spelled(**changes: object) -> dict:
    kept = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    return {**kept, **changes}


def test_sizes_from_the_metadata_of_the_original_layout() -> None:
    kwargs = {"encoder_dim": 2, "latent_dim": 64, "decoder_dim": 128, "vae_latent_channels": 32}
    data = {
        "latents_mean": list(TINY.latents_mean),
        "latents_std": list(TINY.latents_std),
        "sample_rate": 32000,
        "num_attention_heads": 2,
        "metadata": {"kwargs": kwargs},
    }
    assert AudioVAEConfig.from_dict(data) == TINY


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"latents_mean": [0.0] * 31}, "latents_mean"),
        ({"decoder_rates": [5, 5, 2, 2, 2, 2]}, "decoder_rates"),
        ({"decoder_kernel_sizes": [9, 9, 4, 4, 4, 4, 3]}, "kernel"),
        ({"decoder_type": "hifigan"}, "decoder_type"),
        ({"latent_dim": 72}, "latent_dim"),
        ({"resblock_kernel_sizes": [3, 7]}, "AMP"),
    ],
)
def test_config_that_cannot_be(changes: dict, word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        AudioVAEConfig.from_dict(spelled(**changes))


def test_config_without_statistics() -> None:
    with pytest.raises(CheckpointError, match="latents_mean"):
        AudioVAEConfig.from_dict({"latent_dim": 2048})


def test_key_map_names_every_tensor_once(vae: AudioVAE) -> None:
    for layout in ("original", "diffusers"):
        entries = key_map(TINY, layout).entries
        assert {e.target for e in entries} == set(vae.state_dict())
        assert all(e.sources == (e.target,) and e.reorder is None for e in entries)
    names = {e.target for e in entries}
    assert len(names) == len(entries) == 1087
    assert {
        "decoder.ups.6.0.weight_g",
        "decoder.resblocks.20.activations.5.downsample.lowpass.filter",
        "decoder.activation_post.upsample.filter",
        "pre_block.attn.zero_k_bias",
        "encoder.block.5.block.4.weight_v",
        "encoder.block.7.bias",
    } <= names
    assert "decoder.conv_post.bias" not in names


# --- layers --------------------------------------------------------------------------------------


def test_snake_is_linear_in_the_encoder_and_logarithmic_in_the_decoder() -> None:
    x, a, b = np.linspace(-2, 2, 9), 0.7, -0.4
    snake, beta = Snake(1), SnakeBeta(1)
    with torch.no_grad():
        snake.alpha.fill_(a), beta.alpha.fill_(a), beta.beta.fill_(b)
        line = torch.tensor(x, dtype=torch.float32)[None, None]
        np.testing.assert_allclose(snake(line)[0, 0], x + np.sin(a * x) ** 2 / a, atol=1e-6)
        expected = x + np.sin(np.exp(a) * x) ** 2 / np.exp(b)
        np.testing.assert_allclose(beta(line)[0, 0], expected, atol=1e-6)


def kaiser() -> np.ndarray:
    n = np.arange(-6, 6) + 0.5
    taps = np.kaiser(12, 4.66380) * 0.5 * np.sinc(0.5 * n)
    return taps / taps.sum()


def test_filter() -> None:
    np.testing.assert_allclose(half_band_filter().reshape(-1), kaiser(), atol=1e-6)


def test_resampling_pads_with_the_edge_and_keeps_time() -> None:
    x = np.random.default_rng(0).normal(size=40)
    line = torch.tensor(x, dtype=torch.float32)[None, None]
    stuffed = np.zeros(2 * 50)
    stuffed[::2] = np.pad(x, 5, mode="edge")
    up = 2 * np.convolve(stuffed[:-1], kaiser())[15:-15]
    assert len(up) == 80
    np.testing.assert_allclose(Upsample()(line)[0, 0], up, atol=1e-5)
    down = np.correlate(np.pad(x, (5, 6), mode="edge"), kaiser(), mode="valid")[::2]
    assert len(down) == 20
    np.testing.assert_allclose(Downsample()(line)[0, 0], down, atol=1e-5)
    slow = torch.sin(torch.arange(200) / 20)[None, None]
    there_and_back = Downsample()(Upsample()(slow))
    assert (there_and_back - slow)[..., 8:-8].abs().max() < 5e-3


def test_the_stored_filter_is_the_one_used() -> None:
    layer, x = AliasFree(2), torch.randn(1, 2, 16)
    before = layer(x)
    layer.upsample.filter.mul_(0.5)
    assert not torch.allclose(layer(x), before)


def test_weight_norm_follows_axis_0_of_a_transposed_convolution() -> None:
    conv = ConvTranspose1d(3, 2, 4, 2)
    torch.testing.assert_close(conv.weight.flatten(1).norm(dim=1), torch.ones(3))
    x = torch.randn(1, 3, 5)
    assert conv(x).shape == (1, 2, 10)
    with torch.no_grad():
        conv.weight_g[1] = 0
        muted = conv(x)
        x[:, 1] = 7
        torch.testing.assert_close(conv(x), muted)


def test_attention_is_causal_and_pools_heads_then_neighbours() -> None:
    torch.manual_seed(2)
    width, channels, heads = 24, 3, 2
    attn = HeadPooledAttention(width, channels, heads)
    with torch.no_grad():
        attn.q_bias.normal_(), attn.v_bias.normal_()
        x = torch.randn(1, 5, width)
        got = attn(x)[0].numpy()
        weight, xs = attn.qkv.weight.double().numpy(), x[0].double().numpy()
        q, k, v = np.split(xs @ weight.T, 3, axis=1)
        q, v = q + attn.q_bias.numpy(), v + attn.v_bias.numpy()
        dim = width // heads
        mean = np.zeros((5, dim))
        for h in range(heads):
            part = slice(h * dim, (h + 1) * dim)
            scores = q[:, part] @ k[:, part].T / np.sqrt(dim)
            scores[np.triu_indices(5, 1)] = -np.inf
            soft = np.exp(scores - scores.max(1, keepdims=True))
            mean += soft / soft.sum(1, keepdims=True) @ v[:, part] / heads
        pooled = mean.reshape(5, channels, dim // channels).mean(-1)
        expected = pooled @ attn.proj.weight.numpy().T + attn.proj.bias.numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)


def layer_norm(x: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centred / scale * norm.weight + norm.bias


def test_mlp_input_is_normalized_twice() -> None:
    torch.manual_seed(3)
    block = LatentProjection(24, 3, 2)
    with torch.no_grad():
        for norm in (block.norm1, block.norm2, block.norm3, block.mlp.norm):
            norm.weight.normal_(1, 0.3), norm.bias.normal_()
        x = torch.randn(1, 4, 24)
        y = block.proj(layer_norm(x, block.norm3)) + block.attn(layer_norm(x, block.norm1))
        z = layer_norm(layer_norm(y, block.norm2), block.mlp.norm)
        u = block.mlp.w0(z)
        gelu = 0.5 * u * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (u + 0.044715 * u**3)))
        torch.testing.assert_close(block(x), y + block.mlp.w2(gelu * block.mlp.w1(z)))


# --- the whole network -----------------------------------------------------------------------------


def test_shapes_and_padding(vae: AudioVAE, wave: torch.Tensor, rows: torch.Tensor) -> None:
    assert rows.shape == (12, 32) and rows.dtype == torch.float32
    assert vae.encode(wave[:, :1]).shape == (2, 32)
    padded = torch.zeros(2, 1600)
    padded[:, :801] = wave[:, :801]
    assert torch.equal(vae.encode(wave[:, :801]), vae.encode(padded))
    sound = vae.decode(rows)
    assert sound.shape == (2, 4800) and sound.dtype == torch.float32


def test_rows_are_left_then_right(vae: AudioVAE, wave: torch.Tensor, rows: torch.Tensor) -> None:
    swapped = vae.encode(wave.flip(0))
    torch.testing.assert_close(swapped, torch.cat([rows[6:], rows[:6]]))
    latents = rows.reshape(2, 6, 32).transpose(1, 2)
    assert torch.equal(vae.decode(latents), vae.decode(rows))
    torch.testing.assert_close(vae.decode(swapped), vae.decode(rows).flip(0), atol=1e-4, rtol=0)


def with_config(vae: AudioVAE, config: AudioVAEConfig) -> AudioVAE:
    other = AudioVAE(config).eval()
    other.load_state_dict(vae.state_dict())
    return other


def test_normalization(vae: AudioVAE, wave: torch.Tensor, rows: torch.Tensor) -> None:
    raw = with_config(vae, replace(TINY, latents_mean=(0.0,) * 32, latents_std=(1.0,) * 32))
    mean, std = torch.tensor(TINY.latents_mean).float(), torch.tensor(TINY.latents_std).float()
    torch.testing.assert_close(rows * std + mean, raw.encode(wave))
    assert torch.equal(vae.decode(rows), raw.decode(rows * std + mean))


def test_log_std_head_is_not_used(vae: AudioVAE, wave: torch.Tensor, rows: torch.Tensor) -> None:
    other = with_config(vae, TINY)
    other.logs_proj.weight.data.fill_(float("nan"))
    assert torch.equal(other.encode(wave), rows)


def test_later_sound_never_changes_earlier_latents_by_attention(vae: AudioVAE) -> None:
    x = torch.randn(1, 9, 64)
    y = x.clone()
    y[:, 5:] = torch.randn(1, 4, 64)
    a, b = vae.pre_block(x), vae.pre_block(y)
    torch.testing.assert_close(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


def test_the_output_is_clamped_not_squashed(vae: AudioVAE, rows: torch.Tensor) -> None:
    other = with_config(vae, TINY)
    with torch.no_grad():
        other.decoder.conv_post.weight_g *= 50
        high = other.decode(rows)
    low = vae.decode(rows)
    assert 0.02 < low.abs().max() < 1 and (high.abs() == 1).any()
    torch.testing.assert_close(high, (50 * low).clamp(-1, 1), atol=1e-5, rtol=0)


def test_three_idle_blocks_change_nothing(vae: AudioVAE) -> None:
    """With every residual muted the sum over three blocks, divided by three, is their input."""
    other = with_config(vae, TINY).decoder
    x = torch.randn(1, 64, 3)
    with torch.no_grad():
        for block in other.resblocks:
            for conv in block.convs2:
                conv.weight_g.zero_()
        expected = other.conv_pre(x)
        for up in other.ups:
            expected = up(expected)
        expected = other.conv_post(other.activation_post(expected)).clamp(-1, 1)
        torch.testing.assert_close(other(x), expected)


def test_float32_whatever_surrounds_the_call(vae: AudioVAE, wave: torch.Tensor, rows: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(vae.encode(wave), rows)
        inside = vae.decode(rows)
    assert torch.equal(inside, vae.decode(rows)) and not inside.requires_grad


BACKENDS = torch.backends
PRECISIONS = (
    BACKENDS.cuda.matmul,
    BACKENDS.cudnn.conv,
    BACKENDS.mkldnn.matmul,
    BACKENDS.mkldnn.conv,
)


def settings() -> list:
    cudnn = BACKENDS.cudnn
    precisions = [backend.fp32_precision for backend in PRECISIONS]
    return [*precisions, cudnn.enabled, cudnn.benchmark, cudnn.deterministic]


@pytest.fixture
def tf32_everywhere() -> Iterator[None]:
    before = settings()
    torch.set_float32_matmul_precision("high")
    BACKENDS.cudnn.benchmark = True
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.benchmark = False
    for backend, value in zip(PRECISIONS, before, strict=False):
        backend.fp32_precision = value


@pytest.mark.usefixtures("tf32_everywhere")
def test_global_settings_are_put_back_even_after_an_error() -> None:
    chosen = settings()
    assert "tf32" in chosen
    with pytest.raises(KeyError), true_float32(use_cudnn=False):
        assert settings() == ["ieee"] * 4 + [False, False, True]
        raise KeyError
    assert settings() == chosen
    assert torch.get_float32_matmul_precision() == "high"
