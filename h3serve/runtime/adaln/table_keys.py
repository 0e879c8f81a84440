"""How a step's modulation is named, and the shape of its tables (spec/checkpoint.md 1.5).

A key stands for the distinct timesteps of one step. The tables of a key belong together: the number of timesteps
sets the size of the GEMM that made them, thus their bits, so a timestep's tables in one key are not another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h3serve.models.transformer.transformer_config import MODALITIES, VECTORS, TransformerConfig

Key = bytes  # exact float32 bit patterns, ascending


def key_of(timesteps: NDArray[np.float32]) -> Key:
    """float32 [M], ascending and distinct, to their key."""
    return np.ascontiguousarray(timesteps, dtype="<f4").tobytes()


def timesteps_of(key: Key) -> torch.Tensor:
    """A key's timesteps, float32 [M] on the host."""
    return torch.from_numpy(np.frombuffer(key, dtype="<f4").copy())


def count_of(key: Key) -> int:
    """M: how many timesteps a key has."""
    return len(key) // 4


def distinct(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Keys without repeats, in order: the schedule of a request, whatever its number of steps."""
    return tuple(dict.fromkeys(keys))


def schedule_digest(keys: Iterable[Key]) -> str:
    """A name for a set of keys, the same in every order."""
    digest = hashlib.sha256()
    for key in sorted(set(keys)):
        digest.update(bytes([count_of(key)]) + key)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TableShape:
    """Values that one timestep of a model of this size decides."""

    layers: int
    hidden: int

    @staticmethod
    def of(config: TransformerConfig) -> TableShape:
        """The shape that a transformer of this config takes."""
        return TableShape(config.num_layers, config.hidden_size)

    @property
    def block(self) -> int:
        """Values of one block: three modalities, six vectors."""
        return MODALITIES * VECTORS * self.hidden

    @property
    def final(self) -> int:
        """Values of the final layer: shift and scale."""
        return 2 * self.hidden

    @property
    def values(self) -> int:
        """Values of all blocks and the final layer; 9.25 MiB in bfloat16 for the released model."""
        return self.layers * self.block + self.final

    def split(self, page: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A page [values] as views ([layers, block], [final])."""
        blocks, final = page.split([self.layers * self.block, self.final])
        return blocks.view(self.layers, self.block), final


Page = torch.Tensor  # [TableShape.values]: the tables of one timestep of a key
Pages = Sequence[Page]  # of all timesteps of a key, in the key's order
