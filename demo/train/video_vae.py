"""Trains the demo's video VAE: python -m demo.train.video_vae --out FOLDER --seconds 480

Writes video_vae.safetensors (averaged weights, half precision), video_vae.json (loss curve, statistics of the
latents, figures on held-out scenes) and video_vae.png (held-out frames over their reconstructions).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import nn
from torch.nn import functional as F

from demo.train import sizes
from demo.train.captured import Captured, Eager
from demo.train.command import command, freeze_encoder, rehearse_and_run
from demo.train.device import OutOfMemory, fastest, prepare
from demo.train.folded_encoder import moments as folded_moments
from demo.train.loop import Clock, Curve, Every, Trainer, load_weights, save_weights
from demo.train.scenes import clip_batch
from demo.train.video_figures import measure
from demo.train.weights import read_statistics
from demo.world.names import small_canvases
from h3serve.models.video_vae.video_decoder import rope_table
from h3serve.models.video_vae.video_vae import PIXEL_MEAN, PIXEL_STD, VideoVAE, constant

RATE = 1.2e-3
KL = 3e-3  # per latent number, against the mean absolute error in normalized colours
SQUARES = 2.0  # weight of squares beside absolute differences
STRUCTURE = 0.3  # weight of what a given frame is judged by
EDGES = 0.5  # weight of differences between neighbouring pixels
THING = 3.0  # what a pixel off the background weighs beyond one on it
PIXELS = 12 * 96 * 128  # of one frame of all clips of a batch
RESERVE_S = 40.0  # for statistics and figures

Encode = Callable[[VideoVAE, torch.Tensor], torch.Tensor]
Compute = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # losses; gradients are left in the parameters


def initialize(vae: VideoVAE) -> None:
    """Weights to begin with: matrices of unit gain and small residual branches, so that colours come through the
    encoder's normalizations; latents of about unit size with a narrow posterior.
    """
    for name, parameter in vae.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith((".scale1", ".scale2")):
            nn.init.constant_(parameter, 0.5)
        elif parameter.ndim > 1:
            branch = 0.2 if ".conv2." in name else 1.0
            nn.init.normal_(parameter, std=branch * parameter[0].numel() ** -0.5)
    nn.init.normal_(vae.decoder.register_tokens, std=0.5)
    nn.init.normal_(vae.decoder.proj_out.weight, std=0.02)
    mean, logvar = vae.quant_conv.weight.data.chunk(2)
    mean.mul_(1.7)  # the SiLU before it takes as much
    logvar.zero_()
    vae.quant_conv.bias.data.chunk(2)[1].fill_(-6.0)


def losses(vae: VideoVAE, frames: torch.Tensor, encode: Encode) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Total loss, mean square error in [0, 1] colours and divergence of uint8 windows [B,22,H,W,3]."""
    pixels = frames.permute(0, 4, 1, 2, 3).float() / 255.0
    mean, std = (constant(v, pixels.device).view(3, 1, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    pixels = (pixels - mean) / std
    chunks = pixels.split(vae.config.clip_length, dim=2)  # the tail of 5 frames gives the 2 latents that are kept
    mu, logvar = torch.cat([encode(vae, chunk) for chunk in chunks], dim=2).float().chunk(2, dim=1)
    logvar = logvar.clamp(-30.0, 20.0)
    decoded = decode(vae, mu + (0.5 * logvar).exp() * torch.randn_like(mu))
    divergence = 0.5 * (mu.square() + logvar.exp() - 1.0 - logvar).mean()
    error = decoded - pixels
    weight = weights(pixels)
    colour = (error.abs() + SQUARES * error.square()).mul(weight).mean()
    edges = sum(error.diff(dim=dim).abs().mean() for dim in (3, 4))
    alike = structure((decoded * std + mean).clamp(0, 1), pixels * std + mean)
    loss = colour + EDGES * edges + STRUCTURE * (1 - alike) + KL * divergence
    return loss, (error.detach() * std).square().mean(), divergence.detach()


def structure(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """SSIM of float32 [B,3,D,H,W] in [0, 1], mean over windows of 7 x 7: a flat background has to be flat."""
    one, other = one.transpose(1, 2).flatten(0, 1), other.transpose(1, 2).flatten(0, 1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(values, 7, stride=1)

    x, y = mean(one), mean(other)
    spread = mean(one.square() + other.square()) - x.square() - y.square()
    shared = mean(one * other) - x * y
    small, large = 0.01**2, 0.03**2
    return ((2 * x * y + small) * (2 * shared + large) / ((x * x + y * y + small) * (spread + large))).mean()


def weights(pixels: torch.Tensor) -> torch.Tensor:
    """[B,1,D,H,W] of mean 1: more where a pixel differs from the frame's corner, which is nearly always background."""
    thing = (pixels - pixels[..., :1, :1]).abs().amax(dim=1, keepdim=True) > 0.05
    weight = 1.0 + THING * thing.float()
    return weight / weight.mean()


def decode(vae: VideoVAE, latents: torch.Tensor) -> torch.Tensor:
    """The 22 frames of one window of 7 latents: normalized colours, float32 [B,3,22,H,W]."""
    raw = vae.decoder(vae.post_quant_conv(latents).float())
    lead, body = vae.config.lead_frames, vae.config.chunk_latents * vae.config.time_ratio
    return torch.cat([raw[:, :, lead:body], raw[:, :, body + lead :]], dim=2)


def plain(vae: VideoVAE, pixels: torch.Tensor) -> torch.Tensor:
    return vae.quant_conv(vae.encoder(pixels))


def plain_float32(vae: VideoVAE, pixels: torch.Tensor) -> torch.Tensor:
    with torch.autocast(pixels.device.type, enabled=False):
        return plain(vae, pixels)


def folded(vae: VideoVAE, pixels: torch.Tensor) -> torch.Tensor:
    with torch.autocast(pixels.device.type, enabled=False):
        return folded_moments(vae, pixels, torch.bfloat16)


ENCODERS: dict[str, Encode] = {"folded": folded, "plain": plain, "plain_float32": plain_float32}


class Batches:
    """Random clips; every batch on another canvas, with as many clips as make up so many pixels."""

    def __init__(self, seed: int, pixels: int, max_area: int, device: torch.device) -> None:
        self.random, self.pixels, self.device = Random(seed), pixels, device
        self.canvases = small_canvases(max_area)
        # Graphs read the rotation table of each where it is: h3serve must not throw one away.
        assert len(self.canvases) <= rope_table.cache_parameters()["maxsize"]

    def __next__(self) -> torch.Tensor:
        canvas = self.random.choice(self.canvases)
        count = max(1, self.pixels // (canvas[0] * canvas[1]))
        return clip_batch(self.random, count, canvas, self.device)


def train(vae: VideoVAE, batches: Batches, clock: Clock, out: Path) -> Curve:
    """Until the clock is done; averaged weights every minute."""
    frames = next(batches)
    chosen, compute = choose_way(vae, frames)
    trainer = Trainer(vae, clock, rate=RATE)
    facts = {"way": chosen, "rate": RATE, "kl": KL, "squares": SQUARES, "parameters": count(vae)}
    curve, line, minute = Curve(out / "video_vae.json", facts), Every(5.0), Every(60.0)
    while not (clock.done and trainer.steps):
        try:
            loss, mse, divergence = compute(frames)
            frames = next(batches)  # while the GPU works
            trainer.update(loss)
        except OutOfMemory:
            batches.pixels = int(batches.pixels * 0.7)
            torch.cuda.empty_cache()
            frames = next(batches)
            continue
        if line() or trainer.steps == 1:
            psnr = -10.0 * mse.log10().item()
            curve.add(s=clock.elapsed, step=trainer.steps, loss=loss.item(), psnr=psnr, kl=divergence.item())
        if minute():
            save_weights(trainer.weights(), out / "video_vae.safetensors")
    save_weights(trainer.weights(), out / "video_vae.safetensors")
    curve.write(steps=trainer.steps, skipped=trainer.skipped, seconds=clock.elapsed, pixels=batches.pixels)
    return curve


def choose_way(vae: VideoVAE, frames: torch.Tensor) -> tuple[str, Compute]:
    """The quickest way on this device to compute losses and gradients, and its name."""
    device, trained = frames.device, [p for p in vae.parameters() if p.requires_grad]

    def losses_by(encode: Encode, frames: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return losses(vae, frames, encode)

    ways: dict[str, Compute] = {name: Eager(partial(losses_by, way), trained) for name, way in ENCODERS.items()}
    if device.type == "cpu":
        return "plain", ways["plain"]
    ways |= {f"{name}, captured": Captured(partial(losses_by, ENCODERS[name]), trained) for name in ("plain", "folded")}
    chosen = fastest({name: partial(way, frames) for name, way in ways.items()}, device)
    return chosen, ways[chosen]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def main() -> None:
    parser = command(__doc__, seed=1, reserve=RESERVE_S, held_out=24)
    parser.add_argument("--pixels", type=int, default=PIXELS)
    parser.add_argument("--max-area", type=int, default=128 * 224)
    rehearse_and_run(run, parser)


def run(arguments: argparse.Namespace, clock: Clock, out: Path, held_out: int) -> None:
    """Train new weights until the clock is done, and measure them."""
    device = prepare(arguments.seed)
    vae = VideoVAE(sizes.video_vae_config())
    initialize(vae)
    if arguments.start:
        load_weights(vae, arguments.start)
    if arguments.only_decoder:
        freeze_encoder(vae, (vae.post_quant_conv, vae.decoder))
    vae.to(device)
    batches = Batches(arguments.seed, arguments.pixels, arguments.max_area, device)
    curve = train(vae, batches, clock, out)
    known = read_statistics(arguments.start) if arguments.only_decoder else None
    measure(vae, curve, out, device=device, count=held_out, canvases=batches.canvases, known=known)


if __name__ == "__main__":
    main()
