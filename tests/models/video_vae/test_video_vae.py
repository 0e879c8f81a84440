"""Chunks, windows, sampling and the pixel conventions of the video VAE."""

import dataclasses

import pytest
import torch

from h3serve.models.video_vae import video_vae
from h3serve.models.video_vae.tile_batches import decode_tile_bytes, encode_tile_bytes, fit_tiles
from h3serve.models.video_vae.video_decoder import rope_table
from h3serve.models.video_vae.video_vae import (
    Moments,
    VideoVAE,
    constant,
    key_map,
    normalize_pixels,
    to_compute_dtype,
    to_uint8,
)
from tests import keymaps
from tests.models.tiny_video_vae import CONFIG, tiny


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def vae() -> VideoVAE:
    return tiny()


@pytest.fixture
def latents() -> torch.Tensor:
    return torch.randn(1, 24, 12, 2, 2, generator=torch.Generator().manual_seed(2))


def test_chunks_are_independent_and_the_end_is_repeated(vae: VideoVAE) -> None:
    video = torch.randn(1, 3, 22, 32, 32)
    mean, logvar = vae.encode(video)
    assert mean.shape == logvar.shape == (1, 24, 7, 2, 2)
    second = torch.cat([video[:, :, 17:], video[:, :, -1:].expand(-1, -1, 12, -1, -1)], dim=2)
    parts = [vae._encode_chunk(video[:, :, :17]), vae._encode_chunk(second)]
    torch.testing.assert_close(torch.cat([mean, logvar], dim=1), torch.cat(parts, dim=2)[:, :, :7])


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (13, 2), (17, 2), (22, 7), (39, 12)])
def test_latents_of_frames(vae: VideoVAE, frames: int, latents: int) -> None:
    assert vae.encode(torch.zeros(1, 3, frames, 32, 32)).mean.shape[2] == latents


@pytest.mark.parametrize("frames", [1, 13, 17, 18, 39])
def test_uint8_frames_are_normalized_chunk_by_chunk_to_the_same_bits(
    vae: VideoVAE, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    drawn = torch.Generator().manual_seed(frames)
    video = torch.randint(0, 256, (frames, 32, 48, 3), dtype=torch.uint8, generator=drawn)
    expected, seen = vae.encode(normalize_pixels(video)), []

    def normalize(part: torch.Tensor) -> torch.Tensor:
        seen.append(len(part))
        return normalize_pixels(part)

    monkeypatch.setattr(video_vae, "normalize_pixels", normalize)
    found = vae.encode_frames(video)
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.logvar, expected.logvar)
    assert seen == [17] * (frames // 17) + [frames % 17] * (frames % 17 > 0)


@pytest.mark.parametrize(("latents", "frames"), [(3, 9), (7, 22), (8, 26), (9, 30), (12, 39)])
def test_frames_of_latents(vae: VideoVAE, latents: int, frames: int) -> None:
    assert vae.frames_of(latents) == frames
    assert vae.decode_all(torch.randn(1, 24, latents, 2, 2)).shape == (frames, 32, 32, 3)


def test_frames_of_a_request(vae: VideoVAE) -> None:
    assert all(vae.frames_of(5 * n + 2) == 17 * n + 5 for n in range(1, 22))
    with pytest.raises(ValueError, match="2 latents"):
        vae.frames_of(2)


def test_windows_cross_fade_five_frames(vae: VideoVAE, latents: torch.Tensor) -> None:
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (CONFIG.latents_mean, CONFIG.latents_std))
    raw = latents * std + mean
    with torch.no_grad():
        one, two = (vae.decoder(vae.post_quant_conv(raw[:, :, i : i + 7])) for i in (0, 5))
    weight = torch.arange(5).div(5).view(1, 1, 5, 1, 1)
    faded = one[:, :, 23:28] * (1 - weight) + two[:, :, 3:8] * weight
    joined = torch.cat([one[:, :, 3:20], faded, two[:, :, 8:20], two[:, :, 23:28]], dim=2)
    torch.testing.assert_close(vae.decode_all(latents), vae._frames(joined))


def test_decode_streams(vae: VideoVAE, latents: torch.Tensor) -> None:
    """A window is decoded when its frames are asked for, not earlier."""
    calls = []
    handle = vae.decoder.register_forward_hook(lambda *_: calls.append(1))
    counts = [(len(chunk), len(calls)) for chunk in vae.decode(latents)]
    handle.remove()
    assert counts == [(17, 1), (17, 2), (5, 2)]


@pytest.mark.parametrize("batch", [2, 3, 99])
def test_tile_batches_are_equal(vae: VideoVAE, batch: int) -> None:
    small = VideoVAE(dataclasses.replace(CONFIG, tile_size=64, tile_overlap=32))
    small.load_state_dict(vae.state_dict())
    latents, video = torch.randn(1, 24, 7, 6, 7), torch.randn(1, 3, 1, 96, 112)
    frames, moments = small.decode_all(latents), small.encode(video)
    small.tile_batch = small.encode_tile_batch = batch
    torch.testing.assert_close(small.decode_all(latents), frames, atol=1e-5, rtol=0)
    torch.testing.assert_close(small.encode(video), moments, atol=1e-5, rtol=1e-5)


def test_tiling_is_part_of_the_model(vae: VideoVAE) -> None:
    whole = VideoVAE(dataclasses.replace(CONFIG, tile_size=1024))
    whole.load_state_dict(vae.state_dict())
    video, latents = torch.randn(1, 3, 1, 32, 272), torch.randn(1, 24, 3, 1, 17)
    assert not torch.isclose(vae.encode(video).mean, whole.encode(video).mean, atol=1e-3).all()
    assert not torch.isclose(vae.decode_all(latents), whole.decode_all(latents), atol=1e-3).all()


def test_sample_passes_through_half_before_normalization(vae: VideoVAE) -> None:
    mean, logvar, noise = torch.randn(3, 1, 24, 2, 2, 2)
    logvar[0, 0] = 50.0  # clamped to 20
    logvar[0, 1] = -50.0  # clamped to -30
    latents = vae.sample(Moments(mean, logvar), noise)
    for channel, deviation in ((0, torch.exp(torch.tensor(10.0))), (1, torch.exp(torch.tensor(-15.0)))):
        z = (mean[0, channel] + deviation * noise[0, channel]).half().float()
        expected = (z - CONFIG.latents_mean[channel]) / CONFIG.latents_std[channel]
        torch.testing.assert_close(latents[0, channel], expected)
    back = latents[0, 5] * CONFIG.latents_std[5] + CONFIG.latents_mean[5]
    torch.testing.assert_close(back, back.half().float(), atol=1e-6, rtol=1e-6)


def test_pixel_conventions(vae: VideoVAE) -> None:
    frames = torch.tensor([[0, 128, 255]], dtype=torch.uint8).view(1, 1, 1, 3)
    pixels = normalize_pixels(frames)
    assert pixels.shape == (1, 3, 1, 1, 1) and pixels.is_contiguous()
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(pixels.flatten(), torch.tensor(expected))
    torch.testing.assert_close(vae._frames(pixels).flatten(), torch.tensor([0.0, 128 / 255, 1.0]))


def test_to_uint8_rounds_down() -> None:
    values = torch.tensor([-0.1, 0.0, 0.9999 / 255, 1.5 / 255, 254.999 / 255, 1.0, 1.2])
    assert to_uint8(values).tolist() == [0, 0, 0, 1, 254, 255, 255]


def test_every_byte_survives() -> None:
    frames = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    frames = torch.cat([frames, frames.flip(1)])
    vae = VideoVAE(CONFIG)
    error = to_uint8(vae._frames(normalize_pixels(frames)) + 1e-4).int() - frames.int()
    assert (error == 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_shows(vae: VideoVAE, value: float) -> None:
    raw = torch.zeros(1, 3, 1, 2, 2)
    raw[0, 1, 0, 0, 1] = value
    bad = vae._frames(raw).isnan()
    assert bad[0, 0, 1, 1] and bad.sum() == 1


def test_odd_sizes_are_refused(vae: VideoVAE) -> None:
    with pytest.raises(ValueError, match="40x32"):
        vae.encode(torch.zeros(1, 3, 1, 40, 32))


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_key_map_round_trip(vae: VideoVAE, layout: str) -> None:
    keys = key_map(CONFIG, layout)
    other = VideoVAE(CONFIG)
    keymaps.load(other, keymaps.dump(vae, keys), keys)
    for name, value in vae.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_original_qkv_rows_are_grouped_by_head(vae: VideoVAE) -> None:
    name = "decoder.transformer_blocks.0.attn.to_qkv.bias"
    ours, file = vae.state_dict()[name], keymaps.dump(vae, key_map(CONFIG, "original"))[name]
    q, k, v = ours.view(3, 2, 64)
    assert torch.equal(file, torch.cat([q[0], k[0], v[0], q[1], k[1], v[1]]))


def test_tiles_fit_the_memory(vae: VideoVAE) -> None:
    released = dataclasses.replace(CONFIG, channels=(128, *CONFIG.channels[1:]), heads=32)
    assert decode_tile_bytes(released) == 12 * 4 * 1792 * 2048
    frame, padded = 128 * 256 * 256, 128 * 258 * 258
    assert encode_tile_bytes(released, 17, fused=True) == 3 * 4 * 17 * frame + 2 * 19 * padded
    assert encode_tile_bytes(released, 1, fused=True) == 3 * 4 * frame + 2 * 3 * padded
    assert encode_tile_bytes(released, 17, fused=False) == 4 * (4 * 17 * frame + 19 * padded)
    some, one = VideoVAE(CONFIG), encode_tile_bytes(CONFIG, 17, fused=False)
    fit_tiles(some, 3 * one + 1)
    assert some.encode_tile_batch == 3
    assert some.tile_batch == 3 * one // decode_tile_bytes(CONFIG)
    fit_tiles(some, 0)
    assert (some.tile_batch, some.encode_tile_batch) == (1, 1)


def test_pictures_batch_by_their_frames(vae: VideoVAE) -> None:
    """A batch of 17-frame tiles is 17 times as many tiles of a picture."""
    small = VideoVAE(dataclasses.replace(CONFIG, tile_size=32, tile_overlap=16))
    batches = []
    small.encoder.register_forward_hook(lambda module, inputs, output: batches.append(len(inputs[0])))
    small.encode(torch.zeros(1, 3, 1, 80, 96))
    assert batches == [17, 3]  # 4 x 5 tiles
    batches.clear()
    small.encode(torch.zeros(1, 3, 17, 48, 32))
    assert batches == [1, 1]


def test_original_names_of_half_precision() -> None:
    """Which parameters each dtype reaches."""
    with torch.device("meta"):
        vae = to_compute_dtype(VideoVAE(CONFIG), torch.float16, torch.bfloat16)
    dtypes = {name: parameter.dtype for name, parameter in vae.named_parameters()}
    half = {name for name, dtype in dtypes.items() if dtype == torch.float16}
    wanted = ("post_quant_conv", "attn.to_qkv", "attn.to_out", "ff.w1", "ff.w2")
    assert half == {n for n in dtypes if n.rpartition(".")[0].endswith(wanted)}
    convolutions = {name for name, dtype in dtypes.items() if dtype == torch.bfloat16}
    wanted = ("conv1", "conv2", "nin_shortcut", "downsample.conv")
    assert convolutions == {n for n in dtypes if ".down." in n and n.removesuffix(".weight").endswith(wanted)}


def test_what_is_kept_while_inferring_serves_training_too() -> None:
    cpu = torch.device("cpu")
    with torch.inference_mode():
        kept = [constant((0.1, 0.7), cpu), *rope_table((3, 5, 2), 1, config=CONFIG, dtype=torch.float32, device=cpu)]
    assert not any(tensor.is_inference() for tensor in kept)
