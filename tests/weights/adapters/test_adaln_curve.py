"""L11: a full-width AdaLN adapter on a pruned base does what it does on the full one, within the curve's own error."""

import numpy as np
import pytest
import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.adaln_curve import on_curve
from h3serve.weights.adapters.updates import LowRank, Scale

ROWS, WIDTH, COORDINATES, POINTS = 30, 24, 6, 200
TARGET = "modulation.blocks.0.adaln_proj.linear.weight"


def curve() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A smooth curve u(t), pruned as the builder does: centred, SVD in float64; (u, coordinates, basis, mean)."""
    t = np.linspace(0, 1, POINTS)[:, None]
    phases = np.random.default_rng(0).uniform(0, 6, (2, WIDTH))
    u = 2.0 + np.sin(1.5 * t + phases[0]) + 0.3 * np.cos(2.5 * t + phases[1])
    mean = u.mean(0)
    left, sizes, right = np.linalg.svd(u - mean, full_matrices=False)
    return u, left[:, :COORDINATES] * sizes[:COORDINATES], right[:COORDINATES], mean


def update() -> LowRank:
    torch.manual_seed(1)
    return LowRank(TARGET, 0, ROWS, torch.randn(3, WIDTH), torch.randn(ROWS, 3), Scale(0.7, 3, 2.1, "test"))


def test_the_delta_is_that_of_the_full_base() -> None:
    u, coordinates, basis, mean = curve()
    full = update()
    expected = 0.7 * u @ full.a.double().numpy().T @ full.b.double().numpy().T
    low, offset = on_curve(full, torch.from_numpy(basis).float(), torch.from_numpy(mean).float())
    found = coordinates @ low.delta(torch.zeros(ROWS, COORDINATES)).double().numpy().T
    assert np.abs(found - expected).max() > 1  # shapes fit, and without the offset it is wrong
    assert offset.target == "modulation.blocks.0.adaln_proj.linear.bias"
    found += offset.delta(torch.zeros(ROWS)).double().numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_what_is_no_basis_of_it() -> None:
    *_, basis, mean = (torch.from_numpy(value).float() for value in curve())
    for odd, sentence in (
        ((basis[:, :-1], mean), r"basis \[6, 23\] and a mean \[24\] do not fit an adapter of width 24"),
        ((basis, mean[:-1]), "do not fit"),
        ((2 * basis, mean), "not orthonormal"),
        ((basis * torch.nan, mean), "not orthonormal"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            on_curve(update(), *odd)
