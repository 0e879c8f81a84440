"""Every random number of a generation, drawn on the CPU in float32 from the request's seed (spec/scheduler.md 4.4-4.6).

Each draw starts a generator of its own, so that device, rank count and batch never change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from h3serve.core.errors import RequestError
from h3serve.core.geometry import AUDIO_LATENT_CHANNELS, LATENT_CHANNELS
from h3serve.core.segments import Segment
from h3serve.pipeline.intermediates import Intermediates

POSTERIOR_SEED = 42  # of the VAE samples of conditions, whatever the request's seed is


@dataclass(frozen=True)
class Noise:
    """`video` [1,24,T,H,W]; `audio` rows [2*Ta,32]; one [1,24,t,h,w] per visual condition in packed order,
    for the condition noise and for the VAE sample; one [2*Tr,32] per sound-bearing condition."""

    video: Tensor
    audio: Tensor
    conditions: tuple[Tensor, ...] = ()
    posterior: tuple[Tensor, ...] = ()
    sounds: tuple[Tensor, ...] = ()


def normal(shape: Sequence[int], seed: int) -> Tensor:
    """Standard normal float32 on the CPU from a fresh generator."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def draw(seed: int, conditions: Sequence[Segment], target: Segment) -> Noise:
    """The released recipe: video and audio from two generators with the same seed."""
    visual = [s for s in conditions if s.latent_frames]
    shapes = [latent_shape(s) for s in visual]
    extra = target.latent_frames + len(visual)
    return Noise(
        video=normal(latent_shape(target), seed),
        audio=normal((target.audio_rows, AUDIO_LATENT_CHANNELS), seed),
        conditions=tuple(_prefix(shape, extra, seed) for shape in shapes),
        posterior=tuple(normal(shape, POSTERIOR_SEED) for shape in shapes),
        sounds=tuple(normal((s.audio_rows, AUDIO_LATENT_CHANNELS), seed + 1) for s in conditions if s.audio_latents),
    )


def replace(drawn: Noise, given: dict[str, object]) -> Noise:
    """`drawn` with explicit arrays in place of some of its own; names are those of `Noise`."""
    parts = {name: getattr(drawn, name) for name in ("video", "audio", "conditions", "posterior")}
    for name, value in given.items():
        if name not in parts:
            raise RequestError(f"noise.{name}", "array", f"known here are {', '.join(parts)}")
        mine = parts[name]
        if isinstance(mine, Tensor):
            parts[name] = _fitting(value, mine, f"noise.{name}")
        else:
            values = list(value)  # type: ignore[call-overload]
            if len(values) != len(mine):
                raise RequestError(f"noise.{name}", f"{len(values)} arrays", f"{len(mine)} arrays")
            parts[name] = tuple(
                _fitting(v, m, f"noise.{name}[{i}]") for i, (v, m) in enumerate(zip(values, mine, strict=True))
            )
    return Noise(**parts, sounds=drawn.sounds)


def keep_noise(noise: Noise, kept: Intermediates) -> None:
    """Keeps every draw."""
    kept.put("noise", noise_video=noise.video, noise_audio=noise.audio)
    kept.put_each("noise", "noise_condition", noise.conditions)
    kept.put_each("noise", "noise_posterior", noise.posterior)


def latent_shape(segment: Segment) -> tuple[int, ...]:
    """[1, 24, T, H, W] of a segment's video latents."""
    return (1, LATENT_CHANNELS, segment.latent_frames, *segment.latent_size)


def _prefix(shape: tuple[int, ...], frames: int, seed: int) -> Tensor:
    """The first frames of a longer draw: drawing fewer gives other numbers, time not being innermost."""
    longer = normal((*shape[:2], max(frames, shape[2]), *shape[3:]), seed)
    return longer[:, :, : shape[2]].contiguous()


def _fitting(value: object, like: Tensor, field: str) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float32)
    if tensor.shape != like.shape:
        raise RequestError(field, list(tensor.shape), f"shape {list(like.shape)}")
    return tensor
