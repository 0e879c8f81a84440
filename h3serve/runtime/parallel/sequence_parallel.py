"""Sequence parallelism (Ulysses): every rank holds a slice of the rows, and in attention a slice of the heads.

The transformer is unaware: its `run_blocks` and `attention` are exchanged. Before the blocks the rows are
cut; around attention two exchanges turn "my rows, all heads" into "all rows, my heads" and back; behind the
blocks the rows are put together again. Rows added to make the slices equal never reach attention, and
are cut off at the end, so no real row depends on them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from h3serve.core.errors import RequestError
from h3serve.models.kernels.elementwise import Rope
from h3serve.models.transformer.blocks import SelfAttention
from h3serve.models.transformer.modulation import Modulation
from h3serve.models.transformer.transformer import Transformer
from h3serve.runtime.parallel.process_group import ProcessGroup


def shard_sequence(transformer: Transformer, group: ProcessGroup) -> None:
    """Make `transformer` work on `group`'s share of every sequence, with the attention kernel it has now.

    RequestError if the heads this rank has cannot be divided by the group.
    """
    attention = transformer.get_submodule("blocks.0.attn")
    assert isinstance(attention, SelfAttention)
    check_heads(attention.heads, group.size)
    sharded = ShardedSequence(transformer, group)
    transformer.attention = sharded.attention
    transformer.run_blocks = sharded.run_blocks  # type: ignore[method-assign]


def check_heads(heads: int, parts: int) -> None:
    """RequestError unless every rank can get the same number of heads."""
    if heads % parts:
        allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise RequestError("ulysses", parts, f"{heads} attention heads can be divided by {allowed}")


class ShardedSequence:
    """What stands in for a transformer's `run_blocks` and `attention`."""

    def __init__(self, transformer: Transformer, group: ProcessGroup) -> None:
        self._run_blocks, self._attention = transformer.run_blocks, transformer.attention
        self._group = group
        self._rows = 0  # of the whole sequence

    def run_blocks(self, x: Tensor, modulation: Modulation, *, index: Tensor, rope: Rope) -> Tensor:
        """x [S, hidden] -> [S, hidden], both whole on every rank."""
        self._rows = len(x)
        part = self._run_blocks(
            self._own(x), modulation, index=self._own(index), rope=Rope(self._own(rope.cos), self._own(rope.sin))
        )
        return self._group.all_gather(part)[: self._rows]

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v of own rows [s, heads, head_dim] -> [s, heads, head_dim]."""
        q, k, v = (self._all_rows(part)[: self._rows] for part in (q, k, v))
        return self._own_rows(self._attention(q, k, v))

    def _own(self, rows: Tensor) -> Tensor:
        """This rank's slice; the last slices are filled with zeros (index: the first table entry)."""
        assert self._group.index is not None
        size = -(-self._rows // self._group.size)
        start = self._group.index * size
        own = rows[start : start + size]
        return own if len(own) == size else torch.cat([own, rows.new_zeros(size - len(own), *rows.shape[1:])])

    def _all_rows(self, part: Tensor) -> Tensor:
        """[s, heads, d] -> [size * s, heads / size, d]."""
        rows, heads, width = part.shape
        groups = part.view(rows, self._group.size, heads // self._group.size, width).transpose(0, 1)
        return self._group.all_to_all(groups).flatten(0, 1)

    def _own_rows(self, part: Tensor) -> Tensor:
        """[S, heads / size, d] -> [s, heads, d]."""
        size = self._group.size
        padded = F.pad(part, (0, 0, 0, 0, 0, -len(part) % size))
        return self._group.all_to_all(padded.unflatten(0, (size, -1))).transpose(0, 1).flatten(1, 2)
