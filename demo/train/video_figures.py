"""What a trained video VAE does to held-out scenes, on the path of a request: encode, sample, decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from demo.train.loop import Curve, load_weights
from demo.train.weights import load_video_vae, statistics
from demo.world import render, sample_scene
from demo.world.names import Size
from h3serve.models.video_vae.video_vae import VideoVAE, normalize_pixels, to_uint8
from h3serve.weights.demo.demo_sizes import Statistics

HELD_OUT = 900_000_000  # seeds from here on are never trained on
FRAMES = 107
SHOWN = (0, 20, 40, 60, 80, 100)


@torch.no_grad()
def measure(
    vae: VideoVAE,
    curve: Curve,
    out: Path,
    *,
    device: torch.device,
    count: int,
    canvases: Sequence[Size],
    known: Statistics | None = None,
) -> None:
    """Statistics of the latents, then PSNR of `count` whole clips, into `curve`; a picture of some of them.

    What is measured are the weights as they were saved; `known` statistics are those of an encoder left alone.
    """
    file = out / "video_vae.safetensors"
    load_weights(vae, file)
    vae.eval()
    scenes = [sample_scene(HELD_OUT + i, canvas=canvases[i % len(canvases)], frames=FRAMES) for i in range(2 * count)]
    if known is None:
        latents = [_encode(vae, render([scene], device)[0]) for scene in scenes[count:]]
        known = statistics(torch.cat([part.flatten(2) for part in latents], dim=2))
    curve.write(statistics=known)
    vae = load_video_vae(file, device)
    figures, rows = [], []
    for scene in scenes[:count]:
        truth = render([scene], device)[0]
        shown = to_uint8(vae.decode_all(_encode(vae, truth)))
        figures.append(psnr(truth, shown))
        rows.append(torch.stack([truth[list(SHOWN)], shown[list(SHOWN)]]).cpu())
        curve.write(psnr_held_out=figures, psnr_mean=sum(figures) / len(figures), psnr_least=min(figures))
    _strips(rows[:12]).save(out / "video_vae.png")


def psnr(truth: torch.Tensor, shown: torch.Tensor) -> float:
    """Of uint8 pictures, in dB."""
    return float(10 * torch.log10(255.0**2 / (truth.float() - shown.float()).square().mean().clamp(min=1e-9)))


def _encode(vae: VideoVAE, frames: torch.Tensor) -> torch.Tensor:
    moments = vae.encode(normalize_pixels(frames))
    noise = torch.randn(moments.mean.shape, generator=torch.Generator().manual_seed(42))
    return vae.sample(moments, noise)


def _strips(rows: Sequence[torch.Tensor]) -> Image.Image:
    """Rows [2, n, H, W, 3] below each other: truth, then reconstruction."""
    pictures = [Image.fromarray(line.transpose(0, 1).flatten(1, 2).numpy()) for row in rows for line in row]
    sheet = Image.new("RGB", (max(p.width for p in pictures), sum(p.height for p in pictures)))
    top = 0
    for picture in pictures:
        sheet.paste(picture, (0, top))
        top += picture.height
    return sheet
