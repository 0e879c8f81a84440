"""Losses and gradients of a batch; `tests/gpu/test_demo_training.py` tries the graphs."""

import torch
from torch import nn

from demo.train.captured import Eager


def test_eager_leaves_the_gradients_of_one_batch() -> None:
    module = nn.Linear(3, 1)
    compute = Eager(lambda batch: (module(batch).sum(), batch.mean()), list(module.parameters()))
    for batch in (torch.ones(2, 3), torch.full((4, 3), 0.5)):
        loss, mean = compute(batch)
        assert not loss.requires_grad
        assert mean == batch.mean()
        assert torch.allclose(module.weight.grad, batch.sum(0))
