"""Pictures, clips and sounds become condition rows (spec/scheduler.md 4.5-4.6, spec/vae_video.md 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.geometry import reference_frames
from h3serve.core.segments import Segment
from h3serve.models.video_vae.video_vae import Moments
from h3serve.pipeline.encode import encode_audio, encode_frames
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.noise import Noise
from h3serve.pipeline.packing import video_to_rows


@dataclass(frozen=True)
class PreparedCondition:
    """A condition as arrays, ready for the encoders, at its final size.

    `frames` uint8 [F,H,W,3] (F = 1 for an image), 24 fps, not yet cut to 17k+5; `wave` float32 [2,n], 32 kHz.
    """

    segment: Segment
    frames: NDArray[np.uint8] | None = None
    wave: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class ConditionRows:
    """Frozen rows in packed order: video float32 [Nc,96], audio float32 [Mc,32]."""

    video: Tensor
    audio: Tensor


def encode_conditions(
    prepared: Sequence[PreparedCondition],
    engine: Engine,
    noise: Noise,
    *,
    levels: tuple[float, float],
    kept: Intermediates,
    between: Callable[[], None] = lambda: None,
) -> ConditionRows:
    """Encodes every condition and mixes in its noise: level * clean + (1 - level) * noise, once.

    `levels` are those of visual and of sound conditions; `between` is called before each encode, and in it
    before each layer or batch of tiles, and may raise Cancelled.
    """
    device = engine.device
    video, audio = [torch.zeros(0, 96, device=device)], [torch.zeros(0, 32, device=device)]
    for item in prepared:
        between()
        if item.wave is not None:
            rows = encode_audio(engine, item.wave, between)
            number = len(audio) - 1
            kept.put("conditions", **{f"condition_audio{number}": rows})
            audio.append(mix(rows, noise.sounds[number].to(device), levels[1]))
        if item.frames is not None:
            number = len(video) - 1
            used = item.frames if len(item.frames) == 1 else item.frames[: reference_frames(len(item.frames))]
            latents = _sample(encode_frames(engine, used, between), engine, noise.posterior[number], number, kept)
            video.append(mix(video_to_rows(latents), video_to_rows(noise.conditions[number].to(device)), levels[0]))
    all_rows = ConditionRows(torch.cat(video), torch.cat(audio))
    if len(all_rows.video):
        kept.put("conditions", condition_rows=all_rows.video)
    return all_rows


def mix(clean: Tensor, noise: Tensor, level: float) -> Tensor:
    """Float32 on both sides: the complement is 1 - float32(level). At level 1 the rows stay as they are."""
    if level == 1.0:
        return clean
    weight = torch.tensor(level, dtype=torch.float32)
    return float(weight) * clean + float(1 - weight) * noise


def _sample(moments: Moments, engine: Engine, noise: Tensor, number: int, kept: Intermediates) -> Tensor:
    latents = engine.video_vae.sample(moments, noise.to(engine.device))
    mean, logvar = moments
    kept.put("conditions", **{f"posterior_mean{number}": mean, f"posterior_logvar{number}": logvar})
    kept.put("conditions", **{f"condition_latents{number}": latents})
    return latents
