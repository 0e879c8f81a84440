"""The loop over evaluations, and how the rows move with each (spec/scheduler.md 4.3).

The model predicts the data-ward velocity v: x0 = x + sigma*v. Nothing here knows of ranks, offload or caches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from h3serve.core.limits import Solver
from h3serve.pipeline.schedule import Schedule

# (video target rows, audio target rows, step) -> their velocities, float32
Predict = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
OnStep = Callable[[int, int], None]  # (evaluations done, of how many); raises Cancelled to stop
# (rows, their velocity, step) -> the rows after it, float32; called once for each step, in order
Step = Callable[[Tensor, Tensor, int], Tensor]
NewStep = Callable[[Schedule], Step]  # one for each modality and generation: it may remember earlier steps


def euler(schedule: Schedule) -> Step:
    """First order: over each step the data prediction is held. The released recipe."""
    return partial(euler_step, schedule)


def denoise(
    predict: Predict,
    rows: tuple[Tensor, Tensor],
    schedules: tuple[Schedule, Schedule],
    on_step: OnStep,
    solver: NewStep = euler,
) -> tuple[Tensor, Tensor]:
    """(video, audio) target rows after all evaluations; state stays float32, conditions are never stepped."""
    video, audio = rows
    move_video, move_audio = map(solver, schedules)
    steps = schedules[0].steps
    assert schedules[1].steps == steps
    for index in range(steps):
        on_step(index, steps)
        video_velocity, audio_velocity = predict(video, audio, index)
        video = move_video(video, video_velocity, index)
        audio = move_audio(audio, audio_velocity, index)
    on_step(steps, steps)
    return video, audio


def euler_step(schedule: Schedule, rows: Tensor, velocity: Tensor, index: int) -> Tensor:
    """Rows after evaluation `index`, float32; the order of operations is the reference's."""
    return _hold(schedule, rows, _clean(schedule, rows, velocity, index), index)


def _clean(schedule: Schedule, rows: Tensor, velocity: Tensor, index: int) -> Tensor:
    """The data prediction x0."""
    sigma = float(1 - schedule.timesteps[index])  # not sigma_i: the float32 round trip is not exact
    return rows + velocity * sigma


def _hold(schedule: Schedule, rows: Tensor, clean: Tensor, index: int) -> Tensor:
    """Rows at the next sigma if x0 stays `clean` on the way."""
    ratio = schedule.sigmas[index + 1] / schedule.sigmas[index]
    return rows * float(ratio) + clean * float(1 - ratio)


class Multistep:
    """Second order with one evaluation a step: the data prediction follows the line through its last two values.

    With u = 1/sigma the flow dx/dsigma = -v = (x - x0)/sigma says d(x/sigma)/du = x0, so that exactly

        x' = (sigma'/sigma) x + sigma' * (integral of x0 over u, from 1/sigma to 1/sigma').

    A constant x0 gives `euler`. In the time l = ln((1 - sigma)/sigma), half the logarithm of the signal-to-noise
    ratio, u = 1 + e^l and the line is x0 + (x0 - before) (t - l)/(l - l_before), which adds to `euler`

        sigma' * (integral of e^t (t - l) over t, from l to l') (x0 - before)/(l - l_before)
        = (1 - sigma') (h - 1 + e^-h)/(l - l_before) (x0 - before)    with h = l' - l.

    DPM-Solver++(2M) has (1 - e^-h) h/2 for h - 1 + e^-h: the same to second order, but not exact for a line.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._weights = schedule, extrapolation_weights(schedule.sigmas.tolist())
        self._before: Tensor | None = None

    def __call__(self, rows: Tensor, velocity: Tensor, index: int) -> Tensor:
        """The rows after step `index`."""
        clean, before = _clean(self._schedule, rows, velocity, index), self._before
        self._before = clean
        held = _hold(self._schedule, rows, clean, index)
        return held if before is None else held + (clean - before) * self._weights[index]


def extrapolation_weights(sigmas: list[float]) -> list[float]:
    """Weights of (x0 - before), by step: 0 where no line can be drawn, and the step is one of `euler`.

    These are the first two steps, as l is minus infinity at sigma 1, and the last one, as it is infinity at 0.
    """
    weights = [0.0] * (len(sigmas) - 1)
    times = [math.nan, *(math.log((1 - sigma) / sigma) for sigma in sigmas[1:-1])]
    for index in range(2, len(times) - 1):
        before, now, after = times[index - 1 : index + 2]
        h = after - now
        weights[index] = (1 - sigmas[index + 1]) * (h + math.expm1(-h)) / (now - before)
    return weights


SOLVERS: Mapping[Solver, NewStep] = {"euler": euler, "multistep": Multistep}
