"""Which rows of stored tensors become which rows of ours: reordered, put together, or only a rank's part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from h3serve.models.key_map import Entry
from h3serve.weights.files.tensor_index import TensorIndex


@dataclass(frozen=True)
class Part:
    """One of `count` equal parts of a tensor along `axis`, 0 or 1.

    The axis may be several stacked `groups` ([q; k; v], [gate; up]): then it is that part of each group.
    """

    axis: int
    index: int
    count: int
    groups: int = 1

    def positions(self, length: int) -> torch.Tensor:
        """int64: which entries of an axis of `length` belong to the part, in order."""
        return torch.arange(length).view(self.groups, self.count, -1)[:, self.index].flatten()


PartOf = Callable[[str], Part | None]  # our name of a tensor -> its part, None for all of it
Shard = Callable[[nn.Module], PartOf]  # makes a module on meta smaller and tells what is left of each tensor


def everything(name: str) -> Part | None:
    """Every tensor as a whole."""
    del name
    return None


@dataclass(frozen=True)
class Run:
    """Rows `first` to `first + count` of the stored tensor `source` are ours from `at` on.

    Of each row those values that `columns` names; None for all of them.
    """

    source: str
    first: int
    count: int
    at: int
    columns: slice | None = None


def runs_of(entry: Entry, index: TensorIndex, part: Part | None = None) -> tuple[Run, ...]:
    """Where the stored rows of an entry go, in as few runs as there are; rows of other parts are left out."""
    shapes = [index.tensors[source].shape for source in entry.sources]
    counts = [shape[0] if shape else 1 for shape in shapes]
    columns, rows = None, None if part is None or part.axis else part
    if part is not None and part.axis == 1:
        width = shapes[0][1] // part.count
        columns = slice(part.index * width, (part.index + 1) * width)
    place = None if entry.reorder is None and rows is None else _places(entry, sum(counts), rows)
    runs, start = [], 0
    for source, count in zip(entry.sources, counts, strict=True):
        if place is None:
            runs.append(Run(source, 0, count, start, columns))
        else:
            runs += [Run(source, *run, columns) for run in _runs(place[start : start + count])]
        start += count
    return tuple(runs)


def rows_of(runs: Iterable[Run]) -> dict[str, list[tuple[int, int]]]:
    """(first, how many) of the rows that `runs` take from each stored tensor: all that has to be read of it."""
    rows: dict[str, list[tuple[int, int]]] = {}
    for run in runs:
        rows.setdefault(run.source, []).append((run.first, run.count))
    return rows


@torch.no_grad()
def arrange(runs: Iterable[Run], stored: Mapping[str, torch.Tensor], target: torch.Tensor) -> None:
    """Copies stored rows to their places in `target`, of any dtype and on any device; no temporary is made."""
    ours = torch.atleast_1d(target)
    for run in runs:
        rows = torch.atleast_1d(stored[run.source])[run.first : run.first + run.count]
        ours[run.at : run.at + run.count].copy_(rows if run.columns is None else rows[:, run.columns])


def _places(entry: Entry, rows: int, part: Part | None) -> torch.Tensor:
    """int64 [rows]: our row of each stored row, sources one after another; -1 for rows of other parts."""
    place = torch.arange(rows)
    if entry.reorder is not None:
        place[entry.reorder(torch.arange(rows))] = torch.arange(rows)
    if part is None:
        return place
    own = part.positions(rows)
    local = torch.full_like(place, -1)
    local[own] = torch.arange(len(own))
    return local[place]


def _runs(place: torch.Tensor) -> list[tuple[int, int, int]]:
    """(first, count, at) of rows that lie side by side in the file and with us; those below 0 are left out."""
    wanted = (place >= 0).nonzero().flatten()
    at = place[wanted]
    breaks = ((torch.diff(at) != 1) | (torch.diff(wanted) != 1)).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(wanted)]
    return [(int(wanted[i]), j - i, int(at[i])) for i, j in pairwise(edges) if j > i]
