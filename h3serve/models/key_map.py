"""What a file must hold for one of our modules: a list of entries, as data.

Every network file has `key_map(config, layout) -> KeyMap`; `weights/` reads files by it and knows no
network. Our own names follow the original layout (spec/checkpoint.md 1.3, 1.8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Layout = Literal["original", "diffusers"]
Reorder = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """One of our tensors and where its bytes come from."""

    target: str  # name in our module's state_dict
    sources: tuple[str, ...]  # tensors of the file, concatenated along axis 0 in this order
    reorder: Reorder | None = None  # file order -> ours; a pure permutation of rows
    restore: Reorder | None = None  # its inverse, for the checkpoint writer


@dataclass(frozen=True)
class KeyMap:
    """All tensors of a component, and the file tensors that are knowingly not used."""

    entries: tuple[Entry, ...]
    unused: tuple[str, ...] = ()  # fnmatch patterns


def same(*names: str) -> tuple[Entry, ...]:
    """Entries for tensors that are stored as we hold them."""
    return tuple(Entry(name, (name,)) for name in names)


def split_heads_interleaved(heads: int, head_dim: int) -> tuple[Reorder, Reorder]:
    """(reorder, restore) for fused QKV: rows grouped per head (q, k, v) <-> [q_all; k_all; v_all]."""

    def reorder(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(heads, 3, head_dim, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    def restore(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(3, heads, head_dim, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    return reorder, restore


def swap_halves(rows: torch.Tensor) -> torch.Tensor:
    """[up; gate] <-> [gate; up]; its own inverse."""
    first, second = rows.chunk(2)
    return torch.cat([second, first])
