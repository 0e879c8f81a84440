"""Final rows to latents, and latents to frames and samples; what is not finite ends here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.errors import OutputError
from h3serve.core.plan import Plan
from h3serve.models.audio_vae.audio_vae import AudioVAE
from h3serve.models.video_vae.video_vae import to_uint8
from h3serve.pipeline.generation_progress import Meter
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.mp4_stream import Chunk
from h3serve.pipeline.noise import latent_shape
from h3serve.pipeline.packing import audio_to_latents, rows_to_video
from h3serve.runtime.offload.copy_to_host import to_host


@dataclass(frozen=True)
class Latents:
    """What the loop leaves: normalized video latents [1,24,T,H,W] and audio latents [2,32,Ta], float32."""

    video: Tensor
    audio: Tensor


def to_latents(rows: tuple[Tensor, Tensor], plan: Plan, kept: Intermediates) -> Latents:
    """Final target rows as latents; OutputError if the model has diverged."""
    for name, values in zip(("video", "audio"), rows, strict=True):
        if not bool(torch.isfinite(values).all()):
            raise OutputError(
                f"the {name} latents hold NaN or infinite values: the model has diverged; nothing was made"
            )
    latents = Latents(rows_to_video(rows[0], latent_shape(plan.target)), audio_to_latents(rows[1]))
    kept.put("latents", final_video_latents=latents.video, final_audio_latents=latents.audio)
    return latents


def decode_audio(vae: AudioVAE, latents: Latents) -> NDArray[np.float32]:
    """float32 [2, samples] at 32 kHz; OutputError for NaN or infinite samples."""
    wave: NDArray[np.float32] = vae.decode(latents.audio).cpu().numpy()
    if not np.isfinite(wave).all():
        raise OutputError("the decoded sound holds NaN or infinite samples; nothing was made")
    return wave


def decode_video(
    chunks: Iterable[Tensor], plan: Plan, meter: Meter, on_chunk: Callable[[Chunk], None] | None
) -> NDArray[np.uint8]:
    """uint8 [frames, height, width, 3] of what `VideoVAE.decode` gives; a chunk is handed on as soon as it is there."""
    width, height = plan.canvas
    video = np.empty((plan.frames, height, width, 3), np.uint8)
    done = 0
    for frames, finite in to_host((to_uint8(f), torch.isfinite(f).all()) for f in chunks):
        if not finite:
            raise OutputError("the decoded video holds NaN or infinite values; nothing was made")
        chunk = video[done : done + len(frames)]
        chunk[:] = frames.numpy()
        done += len(chunk)
        if on_chunk:
            on_chunk(chunk)
        meter.frames(done, plan.frames)
    assert done == plan.frames
    return video
