"""One generated clip against its ground truth: which figures a case asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from h3serve.core.geometry import FPS, SAMPLE_RATE
from h3serve.guard.audio_faults import check_audio, check_container
from h3serve.guard.audio_metrics import compare_audio
from h3serve.guard.cases import Case
from h3serve.guard.image_metrics import Frame, Similarity, compare_frames, sample_indices
from h3serve.guard.metric import Figure, at_least
from h3serve.guard.pcm import Wave, to_pcm
from h3serve.guard.truth_store import Clip, Facts


@dataclass(frozen=True)
class Made:
    """A whole generated clip: video uint8 [F,H,W,3], audio float32 [2, n] at 32 kHz, its MP4 file."""

    video: Frame
    audio: Wave
    file: Path

    def kept(self, which: Literal["ends", "all"], made_with: str) -> Clip:
        """What is stored of it: the compared frames, and the sound at 16 kHz."""
        frames = {index: self.video[index] for index in sample_indices(len(self.video), which)}
        return Clip(Facts(frames=len(self.video), made_with=made_with), frames, to_pcm(self.audio, SAMPLE_RATE))


def judge(case: Case, made: Made, truth: Clip | None, *, clip: Similarity | None = None) -> list[Figure]:
    """Agreement figures of `case`; without a ground truth those that need none."""
    limits, figures = case.thresholds, []
    if "frames" in case.checks and truth:
        figures += _frame_figures(case, made.video, truth, clip)
    if "sound" in case.checks:
        if truth:
            figures += compare_audio(truth.pcm, to_pcm(made.audio, SAMPLE_RATE), limits=limits.sound)
        figures += check_audio(made.audio, SAMPLE_RATE, len(made.video) / FPS, limits=limits.sound)
    if "container" in case.checks:
        figures += check_container(made.file, limits=limits.sound)
    return figures


def _frame_figures(case: Case, video: Frame, truth: Clip, clip: Similarity | None) -> list[Figure]:
    wanted = sample_indices(truth.facts.frames, case.frames)
    frames = {index: truth.frames[index] for index in wanted if index in truth.frames}
    whole = at_least("ground truth frames", len(frames), len(wanted))
    if not frames:
        return [whole]
    compared = compare_frames(frames, truth.facts.frames, video, limits=case.thresholds.frames, clip=clip)
    return [whole, *compared]
