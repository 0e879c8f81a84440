"""The denoise loop: a short function on rows. It knows nothing of ranks, offload or caches."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from h3serve.pipeline.schedule import Schedule

# (video target rows, audio target rows, step) -> their velocities, float32
Predict = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
OnStep = Callable[[int, int], None]  # (evaluations done, of how many); raises Cancelled to stop


def denoise(
    predict: Predict, rows: tuple[Tensor, Tensor], schedules: tuple[Schedule, Schedule], on_step: OnStep
) -> tuple[Tensor, Tensor]:
    """(video, audio) target rows after all evaluations; state stays float32, conditions are never stepped."""
    video, audio = rows
    video_schedule, audio_schedule = schedules
    steps = len(video_schedule.sigmas) - 1
    assert len(audio_schedule.sigmas) - 1 == steps
    for index in range(steps):
        on_step(index, steps)
        video_velocity, audio_velocity = predict(video, audio, index)
        video = video_schedule.step(video, video_velocity, index)
        audio = audio_schedule.step(audio, audio_velocity, index)
    on_step(steps, steps)
    return video, audio
