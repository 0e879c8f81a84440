"""The loop over evaluations, and how the rows move with each (spec/scheduler.md 4.3).

The model predicts the data-ward velocity v: x0 = x + sigma*v. Nothing here knows of ranks, offload or caches.
"""

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
        video = euler_step(video_schedule, video, video_velocity, index)
        audio = euler_step(audio_schedule, audio, audio_velocity, index)
    on_step(steps, steps)
    return video, audio


def euler_step(schedule: Schedule, rows: Tensor, velocity: Tensor, index: int) -> Tensor:
    """Rows after evaluation `index`, float32; the order of operations is the reference's."""
    sigma = float(1 - schedule.timesteps[index])  # not sigma_i: the float32 round trip is not exact
    ratio = schedule.sigmas[index + 1] / schedule.sigmas[index]
    clean = rows + velocity * sigma
    return rows * float(ratio) + clean * float(1 - ratio)
