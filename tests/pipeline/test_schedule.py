"""Sigma grids and updates of spec/scheduler.md."""

import numpy as np
import pytest
import torch

from h3serve.core import segments
from h3serve.core.errors import RequestError
from h3serve.core.limits import LIMITS
from h3serve.core.request import parse_request
from h3serve.pipeline.intermediates import Intermediates
from h3serve.pipeline.packing import pack
from h3serve.pipeline.schedule import Schedule, all_step_times, make_schedule, make_schedules, sigma_grid, step_times
from h3serve.pipeline.solver import euler_step

VIDEO_50 = [1, 0.998302, 0.996540, 0.994709, 0.992806, 0.990826]
AUDIO_50 = [1, 0.993243, 0.986301, 0.979167, 0.971831, 0.964286]
VIDEO_8 = [1, 0.988235, 0.972973, 0.952381, 0.923077, 0.878049, 0.8, 0.631579, 0]
AUDIO_8 = [1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3, 0]


def test_published_values() -> None:
    for shift, head, tail in (
        (12.0, VIDEO_50, [0.433735, 0.333333, 0.196721, 0]),
        (3.0, AUDIO_50, [0.160714, 0.111111, 0.057692, 0]),
    ):
        grid = sigma_grid(50, shift)
        assert len(grid) == 51 and grid.dtype == torch.float32
        np.testing.assert_allclose(grid[:6], head, atol=1e-6)
        np.testing.assert_allclose(grid[-4:], tail, atol=1e-6)
    np.testing.assert_allclose(sigma_grid(8, 12.0), VIDEO_8, atol=1e-6)
    np.testing.assert_allclose(sigma_grid(8, 3.0), AUDIO_8, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 8, 50, 1000])
@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0, 12.0])
def test_grid_counts_evaluations_and_ends_clean(steps: int, shift: float) -> None:
    grid = sigma_grid(steps, shift)
    assert len(grid) == steps + 1
    assert grid[0] == 1 and grid[-1] == 0 and bool((grid.diff() < 0).all())


@pytest.mark.parametrize("shift", [LIMITS.min_shift, 0.37, 3.0, 12.0, LIMITS.max_shift])
def test_every_shift_and_count_that_is_taken_gives_distinct_points(shift: float) -> None:
    for steps in range(1, LIMITS.max_steps + 1):
        schedule = make_schedule(steps, shift, "flow_shift")
        assert len(schedule.sigmas) == steps + 1 and len(schedule.timesteps) == steps


@pytest.mark.parametrize(("steps", "shift"), [(50, 1e6), (50, 1e8), (50, 1e39), (1, 1e-4), (1000, 1e4), (594, 1e4)])
def test_points_that_coincide_are_refused_by_the_fields_name(steps: int, shift: float) -> None:
    """By arithmetic: near sigma 1 points lie 1 / (shift * steps) apart, float32 values 2**-24."""
    with pytest.raises(RequestError, match=rf"^audio_flow_shift: .* {steps} evaluations {steps + 1} distinct sigmas"):
        make_schedule(steps, shift, "audio_flow_shift")


def test_sigmas_of_a_request_are_taken_as_they_are() -> None:
    """The nearest neighbours that a request may have are distinct in float32, as sigmas and as timesteps."""
    gap = LIMITS.min_sigma_gap
    video = [1, *(centre + side * gap / 2 for centre in (0.9, 0.5, 0.25, 0.1) for side in (1, -1)), gap, 0]
    audio = [1, 1 - gap, *(1 - i / 16 for i in range(1, 9)), 0]
    fields = {"task": "t2va", "prompt": "x", "target": {"duration_seconds": 4}}
    request = parse_request({**fields, "sigmas": {"video": video, "audio": audio}})
    for schedule, given in zip(make_schedules(request, (12.0, 3.0), Intermediates.of([])), (video, audio), strict=True):
        assert schedule.sigmas.tolist() == np.float32(given).tolist() and schedule.sigmas.dtype == torch.float32
        assert bool((schedule.sigmas.diff() < 0).all() and (schedule.timesteps.diff() > 0).all())


@pytest.mark.parametrize("steps", [1, 7, 50])
def test_constant_velocity_is_followed_to_the_clean_sample(steps: int) -> None:
    schedule = Schedule(sigma_grid(steps, 12.0))
    noise, clean = torch.randn(5, 96), torch.randn(5, 96)
    rows = noise
    for index in range(steps):
        rows = euler_step(schedule, rows, clean - noise, index)
    torch.testing.assert_close(rows, clean, atol=1e-5, rtol=1e-5)


def test_sigma_comes_from_the_rounded_timestep() -> None:
    """1 - float32(1 - sigma) is not sigma below one half."""
    schedule = Schedule(sigma_grid(50, 3.0))
    index = 47
    sigma = 1 - schedule.timesteps[index]
    assert sigma != schedule.sigmas[index]
    ratio = schedule.sigmas[index + 1] / schedule.sigmas[index]
    x, v = torch.randn(64, 32), torch.randn(64, 32)
    assert torch.equal(euler_step(schedule, x, v, index), ratio * x + (1 - ratio) * (x + sigma * v))


def of_kinds(*times_and_levels: float) -> list[float]:
    """Timesteps of video, image condition, audio, audio condition."""
    video, audio, *levels = times_and_levels
    times = step_times(video, audio, np.arange(4), *levels)
    return times.values[times.slots].tolist()


def test_each_modality_has_its_own_shift_and_each_condition_its_own_level() -> None:
    """From a request to the timestep of every row: 1 - s(N-i) / (N + (s-1)(N-i))."""
    conditions = [{"type": kind, "uri": "a", "role": "reference"} for kind in ("image", "audio")]
    fields = {"task": "ref2va", "prompt": "x", "conditions": conditions, "target": {"duration_seconds": 4}}
    levels = {"imgvid_cond_noise_aug_for_inference": 0.3, "audio_cond_noise_aug_for_inference": 0.6}
    target = segments.target((64, 64), 22)
    layout = pack(np.ones(2, np.int64), [segments.image((64, 64)), segments.audio(800)], target)
    for own, expected in (
        ({}, (12.0, 3.0)),
        ({"flow_shift": 7.0}, (7.0, 3.0)),
        ({"audio_flow_shift": 2.0}, (12.0, 2.0)),
    ):
        request = parse_request({**fields, **levels, **own, "num_inference_steps": 8})
        schedules = make_schedules(request, (12.0, 3.0), Intermediates.of([]))
        times = all_step_times(schedules, layout, request.condition_levels)
        for i, step in enumerate(times):
            video, audio = (1 - s * (8 - i) / (8 + (s - 1) * (8 - i)) for s in expected)
            by_kind = np.array([video, max(video, 0.3), audio, max(audio, 0.6)])
            np.testing.assert_allclose(step.values[step.slots[layout.kinds]], by_kind[layout.kinds], atol=1e-6)


def test_conditions_are_held_near_clean() -> None:
    every = np.arange(4)
    start = step_times(0.0, 0.0, every, 0.999, 1.0)
    assert start.values.tolist() == pytest.approx([0.0, 0.999, 1.0])
    assert start.slots.tolist() == [0, 1, 0, 2]
    later = step_times(0.9995, 0.5, every, 0.999, 1.0)  # the video has overtaken its conditions
    assert later.slots.tolist() == [1, 1, 0, 2]
    assert step_times(0.0, 0.0, np.array([0, 2]), 0.999, 1.0).values.tolist() == [0.0]
    assert of_kinds(0.7, 0.2, 0.9, 0.4) == pytest.approx([0.7, 0.9, 0.2, 0.4])  # nobody has another's
    assert of_kinds(0.7, 0.2, 0.5, 0.1) == pytest.approx([0.7, 0.7, 0.2, 0.2])  # neither below its own modality's
    assert of_kinds(0.2, 0.7, 0.1, 0.5) == pytest.approx([0.2, 0.2, 0.7, 0.7])
    assert step_times(0.2, 0.1, np.array([0, 2]), 0.999, 1.0).values.dtype == np.float32
