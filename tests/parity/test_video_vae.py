"""The video VAE beside diffusers': the same random weights, float32 on the CPU."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from h3serve.models.video_vae.video_vae import Moments, VideoVAE, key_map, normalize_pixels, to_uint8
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from tests import keymaps
from tests.parity.recorded import CASES

diffusers = pytest.importorskip("diffusers")

TINY = {
    "block_out_channels": (8, 16, 16, 16, 16, 32),
    "norm_num_groups": 4,
    "decoder_num_layers": 2,
    "decoder_num_attention_heads": 2,
    "latents_mean": tuple(0.1 * i - 1 for i in range(24)),
    "latents_std": tuple(0.5 + 0.1 * i for i in range(24)),
}
UNTILED = 1 << 20


def near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error <= tolerance, f"{error:.2e}"


@pytest.fixture(scope="module")
def theirs():
    model = diffusers.AutoencoderKLMiniMaxH3(**TINY)
    keymaps.fill(model, 11)
    return model


def ours_like(theirs, tile: int, overlap: int) -> VideoVAE:
    config = VideoVAEConfig.from_dict(theirs.config)
    vae = VideoVAE(dataclasses.replace(config, tile_size=tile, tile_overlap=overlap))
    keymaps.load(vae, theirs.state_dict(), key_map(config, "diffusers"))
    return vae


def pair(theirs, tile: int) -> VideoVAE:
    """Ours; theirs is set to the same tiles."""
    overlap = min(64, tile // 2)
    if tile == UNTILED:
        theirs.disable_tiling()
    else:
        theirs.enable_tiling(tile, tile, overlap, overlap)
    return ours_like(theirs, tile, overlap)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


SIZES = [
    # frames, height, width, tile
    (1, 64, 96, 256),
    (1, 288, 320, 256),
    (1, 288, 320, UNTILED),
    (1, 272, 64, 256),
    (1, 160, 208, 64),
    (13, 32, 48, 256),
    (22, 64, 96, 256),
    (22, 48, 80, 32),
    (39, 64, 96, UNTILED),
    (40, 64, 64, 256),
    (124, 32, 48, 256),
]


@pytest.mark.parametrize(("frames", "height", "width", "tile"), SIZES)
@torch.no_grad()
def test_encode(theirs, frames: int, height: int, width: int, tile: int) -> None:
    vae = pair(theirs, tile)
    pixels = random(1, 3, frames, height, width)
    posterior = theirs.encode(pixels).latent_dist
    mean, logvar = vae.encode(pixels)
    near(mean, posterior.mean)
    near(logvar, posterior.logvar)


LATENTS = [
    # latents, height, width, tile
    (7, 4, 6, 256),
    (7, 18, 20, 256),
    (7, 18, 20, UNTILED),
    (7, 17, 4, 256),
    (7, 10, 13, 64),
    (12, 4, 6, 256),
    (37, 4, 6, 256),
    (37, 5, 7, 64),
    (3, 2, 2, 256),
    (8, 4, 4, 256),
    (10, 4, 4, 256),
    (11, 4, 4, 256),
]


@pytest.mark.parametrize(("latents", "height", "width", "tile"), LATENTS)
@torch.no_grad()
def test_decode(theirs, latents: int, height: int, width: int, tile: int) -> None:
    vae = pair(theirs, tile)
    z = random(1, 24, latents, height, width)
    mean, std = (torch.tensor(TINY[f"latents_{n}"]).view(1, -1, 1, 1, 1) for n in ("mean", "std"))
    sample = theirs.decode(z * std + mean).sample
    imagenet = (torch.tensor(v).view(3, 1, 1, 1) for v in ((0.229, 0.224, 0.225), (0.485, 0.456, 0.406)))
    scale, shift = imagenet
    expected = (sample[0] * scale + shift).clamp(0, 1).permute(1, 2, 3, 0)
    assert expected.std() > 0.1 and ((expected > 0) & (expected < 1)).float().mean() > 0.5
    near(vae.decode_all(z), expected)


def test_diffusers_layout_is_covered(theirs) -> None:
    config = VideoVAEConfig.from_dict(theirs.config)
    vae = ours_like(theirs, 256, 64)
    written = keymaps.dump(vae, key_map(config, "diffusers"))
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[n], value) for n, value in theirs.state_dict().items())


@torch.no_grad()
def test_original_layout_gives_the_same_video(theirs) -> None:
    vae = ours_like(theirs, 256, 64)
    keys = key_map(vae.config, "original")
    twin = VideoVAE(vae.config)
    stored = keymaps.dump(vae, keys) | {"decoder.mask_token": torch.zeros(1, 1, vae.config.width)}
    keymaps.load(twin, stored, keys)
    z, pixels = random(1, 24, 7, 2, 2), random(1, 3, 1, 32, 32)
    assert torch.equal(vae.decode_all(z), twin.decode_all(z))
    assert torch.equal(vae.encode(pixels).mean, twin.encode(pixels).mean)


# Recorded requests.


@pytest.fixture(scope="module")
def recorded_vae(oracle_checkpoint: Path) -> VideoVAE:
    model = diffusers.AutoencoderKLMiniMaxH3.from_pretrained(oracle_checkpoint / "vae")
    return ours_like(model, 256, 64)


@pytest.fixture
def case(request: pytest.FixtureRequest, oracle: Path) -> dict[str, np.ndarray]:
    return dict(np.load(oracle / f"{request.param}.npz"))


def conditions(case: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Frames uint8 [F,H,W,3] of the visual conditions, in order; clips cut to 17k+5 frames."""
    found = []
    for name in (n for n in case if n.startswith("prepared_")):
        if name.endswith("_frames"):
            frames = case[name]
            found.append(frames[: (len(frames) - 5) // 17 * 17 + 5])
        elif name.startswith("prepared_keyframe") or name.endswith("_pixels"):
            found.append(case[name][None])
    return found


@pytest.mark.parametrize("case", [c for c in CASES if c != "t2va"], indirect=True)
def test_recorded_conditions(recorded_vae: VideoVAE, case: dict[str, np.ndarray]) -> None:
    frames = conditions(case)
    assert frames
    for i, condition in enumerate(frames):
        moments = recorded_vae.encode(normalize_pixels(torch.from_numpy(condition)))
        mean, logvar, noise, latents = (
            torch.from_numpy(case[f"{name}{i}"])
            for name in ("posterior_mean", "posterior_logvar", "noise_posterior", "condition_latents")
        )
        near(moments.mean, mean)
        near(moments.logvar, logvar)
        # A rounding error before the float16 step may come out as one float16 step.
        sampled = recorded_vae.sample(moments, noise)
        assert ((sampled - latents).abs() > 1e-5).float().mean() < 1e-2
        near(sampled, latents, 1e-3)
        near(recorded_vae.sample(Moments(mean, logvar), noise), latents, 1e-6)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_recorded_videos(recorded_vae: VideoVAE, case: dict[str, np.ndarray]) -> None:
    frames = recorded_vae.decode_all(torch.from_numpy(case["final_video_latents"]))
    near(frames, torch.from_numpy(case["video"]))
    assert torch.equal(to_uint8(torch.from_numpy(case["video"])), torch.from_numpy(case["video_uint8"]))
