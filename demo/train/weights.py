"""The trained VAEs as files: weights in half precision, and the statistics of their latents beside them.

`NAME.safetensors` holds parameters by h3serve's names, `NAME.json` the figures of the training and, under
"statistics", `latents_mean` and `latents_std`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from demo.train import sizes
from demo.train.loop import load_weights
from h3serve.models.audio_vae import AudioVAE
from h3serve.models.video_vae import VideoVAE
from h3serve.weights.demo_sizes import Statistics


def load_video_vae(file: Path, device: torch.device | str = "cpu") -> VideoVAE:
    """The trained video VAE, float32, without gradients: `encode`, `sample` and `decode` as in a request."""
    vae = VideoVAE(sizes.video_vae_config(read_statistics(file)))
    return _ready(vae, file, device)


def load_audio_vae(file: Path, device: torch.device | str = "cpu") -> AudioVAE:
    """The trained audio VAE, float32, without gradients: `encode` and `decode` as in a request."""
    vae = AudioVAE(sizes.audio_vae_config(read_statistics(file)))
    return _ready(vae, file, device)


def read_statistics(file: Path) -> Statistics:
    """Of the latents, from the JSON beside the weights."""
    return json.loads(file.with_suffix(".json").read_text())["statistics"]


def statistics(latents: torch.Tensor) -> Statistics:
    """Mean and deviation of each channel of `[B, C, ...]`."""
    per_channel = latents.double().transpose(0, 1).flatten(1)
    return {"latents_mean": per_channel.mean(1).tolist(), "latents_std": per_channel.std(1).tolist()}


def _ready(module: Any, file: Path, device: torch.device | str) -> Any:
    load_weights(module, file)
    return module.to(device).eval().requires_grad_(False)
