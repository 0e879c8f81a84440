"""Prompts, pictures and sounds to what the transformer takes; a network wakes only for what was not encoded before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from h3serve.models.audio_vae import AudioVAE
from h3serve.models.text_encoder import EncoderInput, TextEncoder
from h3serve.models.video_vae import Moments, VideoVAE, normalize_pixels
from h3serve.runtime.encodings import EncodingCache, digest_of


class Networks(Protocol):
    """The part of an engine that encoding needs."""

    text_encoder: TextEncoder
    video_vae: VideoVAE
    audio_vae: AudioVAE
    device: torch.device
    encodings: EncodingCache

    def on_device(self, network: nn.Module) -> AbstractContextManager[Any]: ...


def encode_text(networks: Networks, inputs: EncoderInput) -> Tensor:
    """Token states [L, width] on the device."""

    def make() -> dict[str, Tensor]:
        with networks.on_device(networks.text_encoder):
            return {"states": networks.text_encoder.encode(inputs).cpu()}

    name = digest_of("text", *vars(inputs).values())
    return networks.encodings.get(name, make)["states"].to(networks.device)


def encode_frames(networks: Networks, frames: NDArray[np.uint8]) -> Moments:
    """Moments of uint8 [F, H, W, 3], on the device."""

    def make() -> dict[str, Tensor]:
        with networks.on_device(networks.video_vae):
            pixels = torch.from_numpy(frames).to(networks.device)
            mean, logvar = networks.video_vae.encode(normalize_pixels(pixels))
            return {"mean": mean.cpu(), "logvar": logvar.cpu()}

    held = networks.encodings.get(digest_of("frames", frames), make)
    return Moments(held["mean"].to(networks.device), held["logvar"].to(networks.device))


def encode_wave(networks: Networks, wave: NDArray[np.float32]) -> Tensor:
    """Rows of float32 [2, n] at 32 kHz, on the device."""

    def make() -> dict[str, Tensor]:
        with networks.on_device(networks.audio_vae):
            return {"rows": networks.audio_vae.encode(torch.from_numpy(wave).to(networks.device)).cpu()}

    return networks.encodings.get(digest_of("wave", wave), make)["rows"].to(networks.device)
