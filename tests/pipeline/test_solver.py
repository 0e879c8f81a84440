"""Solvers against arithmetic of their own: quadrature, closed solutions, orders of convergence."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.limits import Solver
from h3serve.pipeline.schedule import Schedule, sigma_grid
from h3serve.pipeline.solver import SOLVERS, denoise

Array = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


def time_of(sigma: float) -> float:
    return math.log((1 - sigma) / sigma)


def solve(solver: Solver, schedule: Schedule, start: Tensor, velocity: Callable[[Tensor, float], Tensor]) -> Tensor:
    """One stream alone, at the sigmas of the model's own timesteps."""
    step, rows = SOLVERS[solver](schedule), start
    for index in range(schedule.steps):
        rows = step(rows, velocity(rows, float(1 - schedule.timesteps[index])), index)
    return rows


def by_quadrature(sigmas: list[float], start: Array, clean: Callable[[Array, float], Array]) -> Array:
    """x'/sigma' = x/sigma + the integral of e^t x0(t) dt; x0 is a line from the third step to the last but one."""
    x, before = start, None
    for sigma, after in pairwise(sigmas):
        x0 = clean(x, sigma)
        if after == 0:
            return x0
        if x is start:
            x = x * after + x0 * (1 - after)
            continue
        begin, end = time_of(sigma), time_of(after)
        times = (begin + end) / 2 + (end - begin) / 2 * NODES
        slope = 0 * x0 if before is None else (x0 - before[0]) / (begin - before[1])
        integral = sum(w * math.exp(t) * (x0 + slope * (t - begin)) for w, t in zip(WEIGHTS, times, strict=True))
        x = after * (x / sigma + (end - begin) / 2 * integral)
        before = x0, begin
    return x


@pytest.mark.parametrize("shift", [12.0, 3.0, 0.4])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 50])
def test_multistep_is_the_integral_of_a_line(steps: int, shift: float) -> None:
    """On a made-up field; float32 rows, against float64."""
    start, pull = np.random.default_rng(3).normal(size=(2, 64))
    schedule = Schedule(sigma_grid(steps, shift))
    expected = by_quadrature(schedule.sigmas.tolist(), start, lambda x, s: np.tanh(x * (1 - s) + pull))

    def velocity(rows: Tensor, sigma: float) -> Tensor:
        return (torch.tanh(rows * (1 - sigma) + torch.from_numpy(pull)) - rows) / sigma

    found = solve("multistep", schedule, torch.from_numpy(start), velocity)
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    found = solve("multistep", schedule, torch.from_numpy(start).float(), lambda x, s: velocity(x.double(), s).float())
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


def test_multistep_is_exact_where_the_data_prediction_is_linear_in_time() -> None:
    """x0 = a + b l: then x/sigma = c + e^l (a + b (l - 1))."""
    a, b, c = torch.randn(3, 16, dtype=torch.float64)
    schedule = Schedule(torch.tensor([1.0, 0.97, 0.9, 0.85, 0.5, 0.1, 0.0]))
    step = SOLVERS["multistep"](schedule)
    euler = SOLVERS["euler"](schedule)

    def exact(sigma: float) -> Tensor:
        time = time_of(sigma)
        return sigma * (c + math.exp(time) * (a + b * (time - 1)))

    for index, sigma in list(enumerate(schedule.sigmas.tolist()))[1:-2]:
        rows = exact(sigma)
        velocity = (a + b * time_of(sigma) - rows) / sigma
        moved, after = step(rows, velocity, index), exact(float(schedule.sigmas[index + 1]))
        assert ((moved - after).abs().max() < 1e-6) == (index > 1)
        assert (euler(rows, velocity, index) - after).abs().max() > 1e-3


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("multistep", 2 - 1 / math.log(300))])
def test_order_of_convergence(solver: Solver, order: float, shift: float) -> None:
    """Data of one normal distribution, whose flow is known: noise z becomes mean + deviation z.

    The error of `multistep` is h^2 ln N, as l is singular at both ends: a slope of 2 - 1/ln N.
    """
    mean, deviation = 0.7, 0.8
    noise = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def velocity(rows: Tensor, sigma: float) -> Tensor:
        signal = 1 - sigma
        gain = signal * deviation**2 / (signal**2 * deviation**2 + sigma**2)
        return (mean + gain * (rows - signal * mean) - rows) / sigma

    counts = [100, 200, 400, 800]
    made = [solve(solver, Schedule(sigma_grid(n, shift)), noise, velocity) for n in counts]
    errors = [float((rows - mean - deviation * noise).square().mean().sqrt()) for rows in made]
    slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.1


@pytest.mark.parametrize("solver", ["euler", "multistep"])
def test_each_stream_moves_by_its_own_sigmas(solver: Solver) -> None:
    """Both together as each alone, and again the same: nothing is remembered from one generation to the next."""
    schedules = Schedule(sigma_grid(6, 12.0)), Schedule(sigma_grid(6, 3.0))
    start = torch.randn(5, 96), torch.randn(4, 32)

    def velocity(rows: Tensor, sigma: float) -> Tensor:
        return (torch.sin(rows * 3) - rows) / sigma

    def predict(video: Tensor, audio: Tensor, step: int) -> tuple[Tensor, Tensor]:
        video_sigma, audio_sigma = (float(1 - s.timesteps[step]) for s in schedules)
        return velocity(video, video_sigma), velocity(audio, audio_sigma)

    alone = [solve(solver, s, rows, velocity) for s, rows in zip(schedules, start, strict=True)]
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        moved = denoise(predict, start, schedules, lambda *at: seen.append(at), SOLVERS[solver])
        assert all(torch.equal(a, b) for a, b in zip(moved, alone, strict=True))
    assert seen == [(i, 6) for i in range(7)] * 2
