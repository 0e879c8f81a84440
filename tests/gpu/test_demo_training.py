"""Training the demo's VAEs on a GPU: every way gives the losses and gradients of the plain one."""

from functools import partial
from random import Random

import pytest
import torch
from torch import nn

from demo.train import alias_free, audio_vae, sizes, video_vae
from demo.train.captured import Captured, Eager, Losses
from demo.train.scenes import clip_batch, sound_batch
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.video_vae.video_vae import VideoVAE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
DEVICE = torch.device("cuda", 0)


def results(compute: Eager | Captured, batch: torch.Tensor) -> list[torch.Tensor]:
    """Losses, and the gradients of all parameters in one vector."""
    found = compute(batch)
    return [*(f.clone() for f in found), torch.cat([p.grad.flatten() for p in compute.parameters])]


def agree(expected: list[torch.Tensor], found: list[torch.Tensor], tolerance: float) -> None:
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() <= tolerance * one.norm()


def test_graphs_of_several_shapes_take_turns() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 4, 7), nn.SiLU(), nn.Conv1d(4, 1, 3)).to(DEVICE)
    parameters = list(module.parameters())

    def losses(batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = module(batch)
        return out.square().mean(), out.abs().mean()

    eager, captured = Eager(losses, parameters), Captured(losses, parameters)
    for size in (32, 64, 32, 64):
        batch = torch.randn(2, 1, size, device=DEVICE)
        agree(results(eager, batch), results(captured, batch), 1e-5)


def test_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(audio_vae, "NOISE", 1e-30)
    vae = AudioVAE(sizes.audio_vae_config())
    audio_vae.initialize(vae)
    vae.logs_proj.bias.data.zero_()  # unused
    vae.to(DEVICE)
    trained = [p for p in vae.parameters() if p.requires_grad]
    losses: Losses = partial(audio_vae.losses, vae)
    wave = sound_batch(Random(0), 4, 1, DEVICE)
    expected = results(Eager(losses, trained), wave)
    for way in alias_free.ways().values():
        alias_free.use(vae, way)
        for compute in (Eager(losses, trained), Captured(losses, trained))[: 2 if way.bend else 1]:
            agree(expected, results(compute, wave), 0.02)


def test_picture() -> None:
    torch.manual_seed(0)
    vae = VideoVAE(sizes.video_vae_config())
    video_vae.initialize(vae)
    vae.quant_conv.bias.data[24:] = -30.0  # no noise
    vae.to(DEVICE)
    trained = list(vae.parameters())

    def losses(encode: video_vae.Encode, frames: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            return video_vae.losses(vae, frames, encode)

    frames = clip_batch(Random(0), 2, (96, 64), DEVICE)
    expected = results(Eager(partial(losses, video_vae.plain_float32), trained), frames)
    for encode in (video_vae.plain, video_vae.folded):
        for compute in (Eager, Captured):
            agree(expected, results(compute(partial(losses, encode), trained), frames), 0.15)
