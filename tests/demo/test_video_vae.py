"""Training the video VAE: its shortcuts compute what h3serve computes, and a few steps leave a usable file."""

import json
from random import Random

import numpy as np
import pytest
import torch

from demo.train import sizes, video_vae
from demo.train.device import fastest
from demo.train.folded_encoder import moments as folded_moments
from demo.train.loop import Clock
from demo.train.scenes import WINDOW, clip_batch, crowd
from demo.train.video_figures import measure
from demo.train.weights import load_video_vae
from h3serve.guard.image_metrics import ssim
from h3serve.models.video_vae.video_vae import VideoVAE, normalize_pixels


@pytest.fixture(scope="module")
def vae() -> VideoVAE:
    torch.manual_seed(0)
    vae = VideoVAE(sizes.video_vae_config()).requires_grad_(False)
    video_vae.initialize(vae)
    return vae


@pytest.fixture(scope="module")
def frames() -> torch.Tensor:
    return clip_batch(Random(0), 2, (64, 96), torch.device("cpu"))


@pytest.mark.parametrize("depth", [17, 5, 1])
def test_folded_encoder_is_the_encoder(vae: VideoVAE, frames: torch.Tensor, depth: int) -> None:
    pixels = torch.cat([normalize_pixels(clip[:depth]) for clip in frames])
    parameters = list(vae.encoder.requires_grad_(True).parameters())
    results = []
    for moments in (video_vae.plain(vae, pixels), folded_moments(vae, pixels, torch.float32)):
        results.append((moments, *torch.autograd.grad(moments.square().sum(), parameters)))
    vae.requires_grad_(False)
    for expected, result in zip(*results, strict=True):
        assert (result - expected).norm() <= 1e-4 * expected.norm()


def test_chunks_of_training_are_the_moments_of_a_request(vae: VideoVAE, frames: torch.Tensor) -> None:
    pixels = normalize_pixels(frames[0])
    trained = torch.cat([video_vae.plain(vae, chunk) for chunk in pixels.split(17, dim=2)], dim=2)
    assert torch.allclose(trained, torch.cat(vae.encode(pixels), dim=1), atol=1e-5)


def test_window_of_training_is_the_decode_of_a_request(vae: VideoVAE) -> None:
    latents = torch.randn(1, 24, 7, 4, 6)
    shown = vae._frames(video_vae.decode(vae, latents))
    assert torch.allclose(shown, vae.decode_all(latents), atol=1e-5)
    assert len(shown) == WINDOW


def test_a_few_steps_leave_a_usable_file(tmp_path) -> None:
    torch.manual_seed(0)
    vae = VideoVAE(sizes.video_vae_config())
    video_vae.initialize(vae)
    batches = video_vae.Batches(1, 64 * 64, 64 * 64, torch.device("cpu"))
    curve = video_vae.train(vae, batches, Clock(4.0), tmp_path)
    measure(vae, curve, tmp_path, device=batches.device, count=1, canvases=batches.canvases)
    facts = json.loads((tmp_path / "video_vae.json").read_text())
    assert facts["skipped"] == 0
    assert facts["steps"] > 0
    assert facts["psnr_mean"] > 3
    loaded = load_video_vae(tmp_path / "video_vae.safetensors")
    assert list(loaded.config.latents_std) == pytest.approx(facts["statistics"]["latents_std"])
    assert (tmp_path / "video_vae.png").is_file()


def test_structure_is_what_guard_says(frames: torch.Tensor) -> None:
    clip = frames[0, :3]
    worse = (clip.float() + 6 * torch.randn(clip.shape)).clamp(0, 255).to(torch.uint8)
    judged = np.mean([ssim(one.numpy(), other.numpy()) for one, other in zip(clip, worse, strict=True)])
    one, other = (pixels.permute(3, 0, 1, 2)[None] / 255 for pixels in (clip, worse))
    assert float(video_vae.structure(one, other)) == pytest.approx(judged, abs=0.02)
    assert float(video_vae.structure(one, one)) == pytest.approx(1)


def test_fastest_leaves_out_what_fails() -> None:
    def fails() -> None:
        raise RuntimeError("no kernel")

    assert fastest({"fails": fails, "works": lambda: None}, torch.device("cpu")) == "works"


def test_a_crowd_holds_its_scenes_moved_and_scaled() -> None:
    several = crowd(Random(3), (96, 64))
    times = np.arange(4) / 24
    state, first = several.state(times), several.scenes[0].state(times)
    x, y, factor = several.moves[0]
    things = len(several.scenes[0].things)
    assert len(state.x) == len(several.things) >= 2
    assert np.allclose(state.x[:things], first.x + x)
    assert np.allclose(state.y[:things], first.y + y)
    assert np.allclose(state.radius[:things], first.radius * factor)
