"""Which part of a stored tensor a rank holds, as data: weights that several ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Part:
    """One of `count` equal parts of a tensor along `axis`.

    The axis may be several stacked `groups` ([q; k; v], [gate; up]): then it is that part of each group.
    """

    axis: int
    index: int
    count: int
    groups: int = 1

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor that a part of `shape` belongs to."""
        return *shape[: self.axis], shape[self.axis] * self.count, *shape[self.axis + 1 :]

    def positions(self, length: int) -> torch.Tensor:
        """int64: which entries of an axis of `length` belong to the part, in order."""
        return torch.arange(length).view(self.groups, self.count, -1)[:, self.index].flatten()


PartOf = Callable[[str], Part | None]  # our name of a tensor -> its part, None for all of it
Cut = Callable[[nn.Module], PartOf]  # makes a module on meta smaller and tells what is left of each tensor


def everything(name: str) -> Part | None:
    """Every tensor as a whole."""
    del name
    return None
