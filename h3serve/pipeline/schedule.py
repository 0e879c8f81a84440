"""Sigma grids and timesteps of each evaluation (spec/scheduler.md 4.1-4.3).

All values are float32 and live on
the host, so that the loop never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.errors import RequestError
from h3serve.core.limits import DEFAULT_AUDIO_CONDITION_LEVEL, DEFAULT_STEPS, DEFAULT_VISUAL_CONDITION_LEVEL, Partition
from h3serve.core.request import GenerationRequest
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.packing import FOLLOWS_AUDIO, FOLLOWS_VIDEO, VISUAL_CONDITION, PackedLayout

FIRST_SIGMA_OFF = 1e-6  # rounding of float32


def make_schedules(
    request: GenerationRequest, shifts: tuple[float, float], kept: Intermediates
) -> tuple[Schedule, Schedule]:
    """(video, audio) schedules: the request's sigmas, or else its shifts, or else the checkpoint's."""
    count = request.num_inference_steps
    if request.sigmas is not None:
        video, audio = (Schedule(torch.tensor(s)) for s in (request.sigmas.video, request.sigmas.audio))
    else:
        video = make_schedule(count, request.flow_shift or shifts[0], "flow_shift")
        audio = make_schedule(count, request.audio_flow_shift or shifts[1], "audio_flow_shift")
    kept.put("schedule", sigmas_video=video.sigmas, sigmas_audio=audio.sigmas)
    return video, audio


def sigma_grid(steps: int, shift: float) -> Tensor:
    """float32 [steps+1], from 1 to exactly 0; `steps` counts model evaluations."""
    base = torch.linspace(1, 0, steps + 1, dtype=torch.float32)
    return shift * base / (1 + (shift - 1) * base)


def make_schedule(steps: int, shift: float, field: str) -> Schedule:
    """The schedule of one modality; RequestError naming `field`, where the shift is from, if it is none.

    Sigmas have to fall from 1 to 0 and timesteps to rise, point by point: two equal ones would be an evaluation less.
    """
    schedule = Schedule(sigma_grid(steps, shift))
    sigmas, times = schedule.sigmas, 1 - schedule.sigmas
    is_whole = abs(float(sigmas[0]) - 1) < FIRST_SIGMA_OFF and float(sigmas[-1]) == 0
    if not is_whole or not bool((sigmas.diff() < 0).all() and (times.diff() > 0).all()):
        raise RequestError(field, shift, f"it must give {steps} evaluations {steps + 1} distinct sigmas from 1 to 0")
    return schedule


@dataclass(frozen=True)
class Schedule:
    """The grid of one modality. `timesteps[i]` = float32(1 - sigma_i): 1 is clean."""

    sigmas: Tensor

    @property
    def steps(self) -> int:
        """Model evaluations."""
        return len(self.sigmas) - 1

    def describe(self) -> list[float]:
        """The sigmas in the fewest digits that give the same float32 values again."""
        return [float(str(sigma)) for sigma in self.sigmas.numpy()]

    @property
    def timesteps(self) -> Tensor:
        """float32 [steps]."""
        return 1 - self.sigmas[:-1]


@dataclass(frozen=True)
class StepTimes:
    """Distinct timesteps of one evaluation, ascending float32 [M], and the slot of each row kind."""

    values: NDArray[np.float32]
    slots: NDArray[np.int64]  # [4], by row kind of packing.py; kinds that do not occur point at 0


def step_times(
    video_time: float, audio_time: float, kinds_present: NDArray[np.int64], visual_level: float, audio_level: float
) -> StepTimes:
    """Which timestep each kind of row gets: conditions are held near clean (spec/transformer.md 2.3)."""
    by_kind = np.array(
        [video_time, max(video_time, visual_level), audio_time, max(audio_time, audio_level)], np.float32
    )
    values = np.unique(by_kind[kinds_present])
    slots = np.zeros(4, np.int64)
    slots[kinds_present] = np.searchsorted(values, by_kind[kinds_present])
    return StepTimes(values, slots)


def all_step_times(
    schedules: tuple[Schedule, Schedule], layout: PackedLayout, levels: tuple[float, float]
) -> list[StepTimes]:
    """Distinct timesteps and slots of every evaluation, on the host."""
    present = np.unique(layout.kinds)
    video, audio = (schedule.timesteps.tolist() for schedule in schedules)
    return [step_times(v, a, present, *levels) for v, a in zip(video, audio, strict=True)]


def default_times(
    partition: Partition, shifts: tuple[float, float], steps: int = DEFAULT_STEPS
) -> list[NDArray[np.float32]]:
    """Distinct timesteps of every step of a request that leaves its noise levels at their defaults.

    fl2va weights: without keyframes; ref2va weights: with a silent visual reference.
    """
    video, audio = (Schedule(sigma_grid(steps, shift)).timesteps.tolist() for shift in shifts)
    levels = DEFAULT_VISUAL_CONDITION_LEVEL, DEFAULT_AUDIO_CONDITION_LEVEL
    kinds = np.array([FOLLOWS_VIDEO, FOLLOWS_AUDIO, *([VISUAL_CONDITION] if partition == "ref2va" else [])])
    return [step_times(v, a, kinds, *levels).values for v, a in zip(video, audio, strict=True)]
