"""The trained VAEs as files: weights in half precision, and the statistics of their latents beside them.

`NAME.safetensors` holds parameters by h3serve's names. `latents_mean` and `latents_std` are in `NAME.json` under
"statistics", where a training run leaves its figures, or in the package's `config.json` of the trained demo.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from demo.train import sizes
from demo.train.loop import load_weights
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.weights.demo.demo_sizes import Statistics
from h3serve.weights.demo.demo_trained import CONFIG


def load_video_vae(file: Path, device: torch.device | str = "cpu") -> VideoVAE:
    """The trained video VAE, float32, without gradients: `encode`, `sample` and `decode` as in a request."""
    vae = VideoVAE(sizes.video_vae_config(read_statistics(file)))
    return _ready(vae, file, device)


def load_audio_vae(file: Path, device: torch.device | str = "cpu") -> AudioVAE:
    """The trained audio VAE, float32, without gradients: `encode` and `decode` as in a request."""
    vae = AudioVAE(sizes.audio_vae_config(read_statistics(file)))
    return _ready(vae, file, device)


def read_statistics(file: Path) -> Statistics:
    """Statistics of the latents, from the JSON beside the weights."""
    if (figures := file.with_suffix(".json")).is_file():
        return json.loads(figures.read_text())["statistics"]
    config = json.loads((file.parent / CONFIG).read_text())["configs"][file.stem]
    return {name: config[name] for name in ("latents_mean", "latents_std")}


def statistics(latents: torch.Tensor) -> Statistics:
    """Mean and deviation of each channel of `[B, C, ...]`."""
    per_channel = latents.double().transpose(0, 1).flatten(1)
    return {"latents_mean": per_channel.mean(1).tolist(), "latents_std": per_channel.std(1).tolist()}


def _ready(module: Any, file: Path, device: torch.device | str) -> Any:
    load_weights(module, file)
    return module.to(device).eval().requires_grad_(False)
