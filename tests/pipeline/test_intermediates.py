"""Intermediates that are kept: copied once each, stacked once."""

import numpy as np
import pytest
import torch

from h3serve.pipeline.intermediates import Intermediates


def test_steps_are_stacked_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[int] = []
    stack = np.stack
    monkeypatch.setattr(
        "h3serve.pipeline.intermediates.np.stack", lambda values: stacked.append(len(values)) or stack(values)
    )
    kept = Intermediates.of(["steps"])
    for step in range(7):
        kept.put_step(rows=torch.full((2, 3), float(step)), other=torch.tensor(step))
    found = kept.finished()
    assert stacked == [7, 7]  # not 1 + 2 + ... + 7
    np.testing.assert_array_equal(found["rows"], np.arange(7.0)[:, None, None] * np.ones((1, 2, 3)))
    assert found["other"].tolist() == list(range(7))


def test_what_was_not_asked_for_is_not_kept() -> None:
    kept = Intermediates.of([])
    kept.put_step(rows=torch.zeros(2))
    kept.put("text", ids=torch.zeros(2))
    assert kept.finished() == {}
