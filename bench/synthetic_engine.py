"""An engine with random weights at any size, built on the device: for measuring where no checkpoint is."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.synthetic_weights import synthetic_component
from h3serve.core.geometry import RELEASED_SIZES
from h3serve.core.limits import Quality
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.quality import use_quality, use_vae_quality
from h3serve.models.text_encoder import text_encoder as text_encoder_file
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.text_encoder.tokenizer import VISION_FIELDS, Tokenizer
from h3serve.models.transformer import denoiser as denoiser_file
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.pipeline.engine import Engine, for_device
from h3serve.runtime.memory_meter import PeakMeter
from h3serve.weights.demo.demo_tokenizer import build_tokenizer, write_tokenizer
from h3serve.weights.formats.released_sizes import RELEASED
from h3serve.weights.formats.tokenizer_files import load_tokenizer


def synthetic_engine(
    device: torch.device,
    *,
    quality: Quality = "lossless",
    dtype: torch.dtype = torch.bfloat16,
    configs: Mapping[str, Mapping[str, Any]] = RELEASED,
) -> Engine:
    """All components for t2va and fl2va, nothing read from files; the demo's byte-level tokenizer."""
    backend = build_tokenizer()
    ids = {field: backend.token_to_id(token) for token, field in VISION_FIELDS.items()}
    parts: dict[str, Any] = {
        name: synthetic_component(
            name,
            device=device,
            dtype=dtype,
            config={**configs[name], **ids} if name == "text_encoder" else configs[name],
        )
        for name in ("transformer", "text_encoder", "video_vae", "audio_vae")
    }
    denoiser, text_encoder, video_vae, audio_vae = parts.values()
    assert isinstance(denoiser, Denoiser) and isinstance(text_encoder, TextEncoder)
    assert isinstance(video_vae, VideoVAE) and isinstance(audio_vae, AudioVAE)
    if quality == "fast":
        use_float8(denoiser, denoiser_file.FLOAT8_LINEARS, dtype)
        use_float8(text_encoder, text_encoder_file.FLOAT8_LINEARS, dtype)
    use_quality(denoiser.transformer, quality, device)
    use_vae_quality(video_vae, quality, device)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(backend, Path(folder))
        tokenizer: Tokenizer = load_tokenizer(Path(folder), text_encoder.config)
    return Engine(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        video_vae=for_device(video_vae, device),
        audio_vae=audio_vae,
        denoisers={"fl2va": denoiser},
        sigma_shifts={"fl2va": (12.0, 3.0)},
        device=device,
        quality=quality,
        rules=RELEASED_SIZES,
        peaks=PeakMeter(device),
    )
