"""What a trained audio VAE does to held-out scenes, on the path of a request: encode, decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from demo.train.loop import Curve, load_weights
from demo.train.spectra import magnitudes
from demo.train.weights import load_audio_vae, statistics
from demo.world import sample_scene, synthesize
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.weights.demo.demo_sizes import Statistics

HELD_OUT = 900_000_000  # seeds from here on are never trained on
FRAMES = 107
SHOWN = 6  # sounds in the picture
Sounds = np.ndarray


@torch.no_grad()
def measure(
    vae: AudioVAE, curve: Curve, out: Path, *, device: torch.device, count: int, known: Statistics | None = None
) -> None:
    """Statistics of the latents, then figures of `count` whole sounds, into `curve`; spectrograms of some of them.

    What is measured are the weights as they were saved; `known` statistics are those of an encoder left alone.
    """
    file = out / "audio_vae.safetensors"
    load_weights(vae, file)
    vae.eval()
    waves = [synthesize([sample_scene(HELD_OUT + i, frames=FRAMES)], device)[0] for i in range(2 * count)]
    if known is None:
        latents = torch.stack([vae.encode(wave) for wave in waves[count:]])  # [N, 2T, 32]
        known = statistics(latents.transpose(1, 2))
    curve.write(statistics=known)
    vae = load_audio_vae(file, device)
    curve.write(silence_peak=float(np.abs(_through(vae, torch.zeros_like(waves[0]))).max()))
    figures, sheets = [], []
    for wave in waves[:count]:
        truth, sound = wave.cpu().numpy(), _through(vae, wave)
        figures.append(compare(truth, sound))
        sheets.append(np.stack([truth, sound]))
        curve.write(held_out=figures, **summary(figures))
    _picture(sheets[:SHOWN]).save(out / "audio_vae.png")


def compare(truth: Sounds, sound: Sounds) -> dict[str, float]:
    """Of two stereo sounds: log-spectral similarity of their mono mixes, level and balance in dB."""
    from h3serve.guard.audio_metrics import level_dbfs, spectral_similarity  # needs av, which training does not

    left, right = (level_dbfs(sound[side]) - level_dbfs(truth[side]) for side in (0, 1))
    half = [wave.mean(0)[::2] for wave in (truth, sound)]  # the measure is made for 16 kHz
    return {
        "similarity": round(spectral_similarity(*half), 5),
        "level_db": round((left + right) / 2, 3),
        "balance_db": round(left - right, 3),
    }


def summary(figures: list[dict[str, float]]) -> dict[str, float]:
    """Mean and worst of the similarities, mean sizes of the other differences."""
    similarities = [one["similarity"] for one in figures]
    sizes = {f"{name}_mean": float(np.mean([abs(one[name]) for one in figures])) for name in ("level_db", "balance_db")}
    return {"similarity_mean": float(np.mean(similarities)), "similarity_least": min(similarities), **sizes}


def _through(vae: AudioVAE, wave: torch.Tensor) -> Sounds:
    return vae.decode(vae.encode(wave)).cpu().numpy()


def _picture(sheets: list[Sounds]) -> Image.Image:
    """Left and right channel, truth over reconstruction; 0 to -70 dB, low frequencies at the bottom, up to 5 kHz."""
    lines = []
    for sheet in sheets:
        shades = magnitudes(torch.from_numpy(sheet.reshape(4, -1)), 1024)[:, :160, ::2].log10() * 20
        shades = ((shades + 70) / 70).clamp(0, 1).mul(255).to(torch.uint8).flip(1).numpy()
        left_truth, right_truth, left, right = shades
        lines += [np.concatenate(pair, axis=1) for pair in ((left_truth, right_truth), (left, right))]
    return Image.fromarray(np.concatenate(lines))
