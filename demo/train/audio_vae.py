"""Trains the demo's audio VAE: python -m demo.train.audio_vae --out FOLDER --seconds 480

Writes audio_vae.safetensors (averaged weights, half precision), audio_vae.json (loss curve, statistics of the
latents, figures on held-out scenes) and audio_vae.png (held-out spectrograms over their reconstructions).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import nn

from demo.train import alias_free, sizes
from demo.train.audio_figures import measure
from demo.train.captured import Captured, Eager
from demo.train.command import command, freeze_encoder, rehearse_and_run
from demo.train.device import OutOfMemory, fastest, prepare
from demo.train.loop import Clock, Curve, Every, Trainer, load_weights, save_weights
from demo.train.scenes import sound_batch
from demo.train.spectra import likeness, spectral_loss
from demo.train.weights import read_statistics
from h3serve.models.audio_vae.audio_decoder import AMPBlock
from h3serve.models.audio_vae.audio_encoder import ResidualUnit
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.audio_vae.weight_norm import Conv1d, ConvTranspose1d

RATE = 2e-3
NOISE = 0.05  # deviation of the posterior, the same everywhere: one that is learned closes before anything is heard
SIZE = 1e-4  # weight of the mean square of latents, which would otherwise grow away from the noise
WAVE = 0.5  # weight of the waveform beside the spectra
ALIKE = 2.0  # weight of what a held-out sound is judged by
QUIET = 0.003  # amplitude under which errors are no longer weighed up
SECONDS = 24  # of one channel in a batch
Compute = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # losses; gradients are left in the parameters

LENGTHS = (1, 1, 1, 4)  # seconds of a sound: attention must not depend on the length
RESERVE_S = 30.0  # for statistics and figures


def initialize(vae: AudioVAE) -> None:
    """Weights to begin with: unit gain, small residual branches, quiet sound, no attention, a fixed posterior.

    Directions are short, so that steps of the training's size turn them; the trunk has an offset beside the sound,
    so that its level comes through the normalization behind it.
    """
    for module in vae.modules():
        if isinstance(module, Conv1d | ConvTranspose1d):
            nn.init.ones_(module.weight_g)
            nn.init.normal_(module.weight_v, std=0.1)
    small = [m.block[3] for m in vae.modules() if isinstance(m, ResidualUnit)]
    small += [conv for m in vae.modules() if isinstance(m, AMPBlock) for conv in m.convs2]
    for module in small:
        nn.init.constant_(module.weight_g, 0.2)
    nn.init.constant_(vae.encoder.block[0].weight_g, 8.0)
    nn.init.normal_(vae.encoder.block[-1].bias, std=0.1)
    nn.init.constant_(vae.decoder.conv_post.weight_g, 0.1)
    nn.init.zeros_(vae.pre_block.attn.proj.weight)
    nn.init.zeros_(vae.pre_block.attn.proj.bias)
    nn.init.normal_(vae.mean_proj.weight, std=0.4)
    nn.init.zeros_(vae.logs_proj.weight)
    nn.init.constant_(vae.logs_proj.bias, math.log(NOISE))
    vae.logs_proj.requires_grad_(False)


def losses(vae: AudioVAE, wave: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Total loss, its spectral part and the mean square of the latents of sounds float32 [B,1,n]."""
    latents = vae.mean_proj(vae.pre_block(vae.encoder(wave).transpose(1, 2)).transpose(1, 2))
    decoded = vae.decoder(vae.dec_in_proj(latents + NOISE * torch.randn_like(latents)))
    size = latents.square().mean()
    error, power = (decoded - wave).square().mean((1, 2)), wave.square().mean((1, 2))
    spectral = spectral_loss(wave[:, 0], decoded[:, 0])
    alike = likeness(wave[:, 0], decoded[:, 0]).mean()
    loss = spectral + WAVE * (error / (power + QUIET**2)).mean() + ALIKE * (1 - alike) + SIZE * size
    return loss, spectral.detach(), size.detach()


class Batches:
    """Random sounds; every batch of another length, with as many as make up so many seconds."""

    def __init__(self, seed: int, seconds: int, device: torch.device) -> None:
        self.random, self.seconds, self.device = Random(seed), seconds, device

    def __next__(self) -> torch.Tensor:
        length = self.random.choice(LENGTHS)
        return sound_batch(self.random, max(2, self.seconds // length), length, self.device)


def train(vae: AudioVAE, batches: Batches, clock: Clock, out: Path) -> Curve:
    """Until the clock is done; averaged weights every minute."""
    wave = next(batches)
    name, compute = choose_way(vae, wave)
    trainer = Trainer(vae, clock, rate=RATE)
    parameters = sum(parameter.numel() for parameter in vae.parameters())
    facts = {"way": name, "rate": RATE, "noise": NOISE, "wave": WAVE, "parameters": parameters}
    curve, line, minute = Curve(out / "audio_vae.json", facts), Every(5.0), Every(60.0)
    while not (clock.done and trainer.steps):
        try:
            loss, spectral, size = compute(wave)
            wave = next(batches)  # while the GPU works
            trainer.update(loss)
        except OutOfMemory:
            batches.seconds = max(4, int(batches.seconds * 0.7))
            torch.cuda.empty_cache()
            wave = next(batches)
            continue
        if line() or trainer.steps == 1:
            values = {"loss": loss.item(), "spectral": spectral.item(), "size": size.item()}
            curve.add(s=clock.elapsed, step=trainer.steps, **values)
        if minute():
            save_weights(trainer.weights(), out / "audio_vae.safetensors")
    save_weights(trainer.weights(), out / "audio_vae.safetensors")
    curve.write(steps=trainer.steps, skipped=trainer.skipped, seconds=clock.elapsed, batch_seconds=batches.seconds)
    alias_free.use(vae, alias_free.PLAIN)
    return curve


def choose_way(vae: AudioVAE, wave: torch.Tensor) -> tuple[str, Compute]:
    """The quickest way on this device to compute losses and gradients, and its name."""
    trained = [parameter for parameter in vae.parameters() if parameter.requires_grad]
    eager = Eager(partial(losses, vae), trained)
    if wave.device.type == "cpu":
        return "plain", eager
    ways = alias_free.ways()
    trials = {name: (way, eager) for name, way in ways.items()}
    trials["compiled, captured"] = (ways["compiled"], Captured(eager.losses, trained))

    def trial(way: alias_free.Way, compute: Compute) -> None:
        alias_free.use(vae, way)
        compute(wave)

    chosen = fastest({name: partial(trial, *pair) for name, pair in trials.items()}, wave.device)
    way, compute = trials[chosen]
    alias_free.use(vae, way)
    return chosen, compute


def main() -> None:
    parser = command(__doc__, seed=2, reserve=RESERVE_S, held_out=32)
    parser.add_argument("--batch-seconds", type=int, default=SECONDS)
    rehearse_and_run(run, parser)


def run(arguments: argparse.Namespace, clock: Clock, out: Path, held_out: int) -> None:
    """Train new weights until the clock is done, and measure them."""
    device = prepare(arguments.seed)
    vae = AudioVAE(sizes.audio_vae_config())
    initialize(vae)
    if arguments.start:
        load_weights(vae, arguments.start)
    if arguments.only_decoder:
        freeze_encoder(vae, (vae.dec_in_proj, vae.decoder))
    vae.to(device)
    curve = train(vae, Batches(arguments.seed, arguments.batch_seconds, device), clock, out)
    known = read_statistics(arguments.start) if arguments.only_decoder else None
    measure(vae, curve, out, device=device, count=held_out, known=known)


if __name__ == "__main__":
    main()
