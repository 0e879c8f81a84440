"""Who makes the clips that are judged: the engine, or the ground truth itself to try the detectors."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from demo.degrade import degrade_audio, degrade_video
from demo.evaluation.requests import request_of
from demo.evaluation.rows import Case
from demo.world import render, synthesize
from h3serve import Generator
from h3serve.cli.request_flags import with_strength
from h3serve.models.video_vae.video_vae import to_uint8
from h3serve.pipeline.encode import encode_audio, encode_frames

Clip = tuple[Any, Any]  # uint8 [F,H,W,3], float32 [2,n]


class Maker(Protocol):
    """Makes clips, and takes ground truth through its VAEs."""

    def make(self, case: Case, steps: int) -> Clip: ...

    def reconstruct(self, case: Case) -> Clip: ...


def truth(case: Case) -> Clip:
    """What the case's scene really looks and sounds like."""
    scene = case.example.scene
    return render([scene])[0].numpy(), synthesize([scene])[0].numpy()


class Truth:
    """The ground truth, as it is or as a poor VAE would give it back."""

    def __init__(self, *, degraded: bool) -> None:
        self.degraded = degraded

    def make(self, case: Case, steps: int) -> Clip:
        del steps
        video, audio = truth(case)
        return (degrade_video(video, case.seed), degrade_audio(audio, case.seed)) if self.degraded else (video, audio)

    def reconstruct(self, case: Case) -> Clip:
        return self.make(case, 0)


class Engine:
    """`h3serve.Generator` with any settings."""

    def __init__(self, generator: Generator, adapters: Sequence[str] = ()) -> None:
        self.generator = generator
        self.adapters = [{"name": name, "strength": strength} for name, strength in map(with_strength, adapters)]

    def make(self, case: Case, steps: int) -> Clip:
        with tempfile.TemporaryDirectory() as folder:
            request = {**request_of(case, Path(folder), steps=steps), "adapters": self.adapters}
            result = self.generator.generate(request)
        return result.video, result.audio

    @torch.inference_mode()
    def reconstruct(self, case: Case) -> Clip:
        """Encoded and decoded, without noise of the posterior."""
        engine, (video, audio) = self.generator.engine, truth(case)
        moments = encode_frames(engine, video)
        latents = engine.video_vae.sample(moments, torch.zeros_like(moments.mean))
        sound = engine.audio_vae.decode(encode_audio(engine, audio))
        return to_uint8(engine.video_vae.decode_all(latents)).cpu().numpy(), sound.cpu().numpy()
