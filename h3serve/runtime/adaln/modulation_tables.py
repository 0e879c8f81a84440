"""Modulation tables of a request: how a step's tables are named, their shape, and what the loop is handed.

A key stands for the distinct timesteps of one step (spec/checkpoint.md 1.5). The tables of a key belong together: the
number of timesteps sets the size of the GEMM that made them, thus their bits, so a timestep's tables in one key are
not another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from h3serve.models.transformer.modulation import Modulation, ModulationNetwork
from h3serve.models.transformer.transformer_config import MODALITIES, VECTORS, TransformerConfig

Key = bytes  # exact float32 bit patterns, ascending
Steps = Sequence[NDArray[np.float32]]  # distinct timesteps of every step, ascending
Page = torch.Tensor  # [TableShape.values]: the tables of one timestep of a key
Pages = Sequence[Page]  # of all timesteps of a key, in the key's order


def key_of(timesteps: NDArray[np.float32]) -> Key:
    """The key of timesteps float32 [M], which are ascending and distinct."""
    return np.ascontiguousarray(timesteps, dtype="<f4").tobytes()


def timesteps_of(key: Key) -> torch.Tensor:
    """A key's timesteps, float32 [M] on the host."""
    return torch.from_numpy(np.frombuffer(key, dtype="<f4").copy())


def count_of(key: Key) -> int:
    """M, the number of timesteps that a key stands for."""
    return len(key) // 4


def distinct(keys: Iterable[Key]) -> tuple[Key, ...]:
    """The keys without repeats, in order: the schedule of a request, whatever its number of steps."""
    return tuple(dict.fromkeys(keys))


def schedule_digest(keys: Iterable[Key]) -> str:
    """A name for a set of keys, the same in every order."""
    digest = hashlib.sha256()
    for key in sorted(set(keys)):
        digest.update(bytes([count_of(key)]) + key)
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TableShape:
    """How many values one timestep decides in a model of this size."""

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

    def split(self, page: Page) -> tuple[torch.Tensor, torch.Tensor]:
        """A page as views: blocks [layers, block] and final layer [final]."""
        blocks, final = page.split([self.layers * self.block, self.final])
        return blocks.view(self.layers, self.block), final


@dataclass(frozen=True)
class Scheduled:
    """One set of tables for all steps of a request, and where in it each timestep is.

    `slots[i]`, int64 [M], are the tables' slots of step i's distinct timesteps: what a row's
    timestep index has to be.
    """

    modulation: Modulation
    slots: list[NDArray[np.int64]]


class ModulationSource(Protocol):
    """Whatever turns a request's timesteps into tables."""

    def schedule(self, steps: Steps) -> AbstractContextManager[Scheduled]:
        """The tables of all steps, valid until the `with` block ends."""


class Direct:
    """Tables straight from a network whose projections are in memory; nothing is cached."""

    def __init__(self, network: ModulationNetwork) -> None:
        self._network = network

    @contextmanager
    def schedule(self, steps: Steps) -> Iterator[Scheduled]:
        """Computes the tables of all steps."""
        keys = [key_of(timesteps) for timesteps in steps]
        device = next(self._network.time_embedder.parameters()).device
        made, starts, at = [], {}, 0
        for key in distinct(keys):
            made.append(self._network(timesteps_of(key).to(device)))
            starts[key], at = at, at + count_of(key)
        tables = Modulation(torch.cat([m.blocks for m in made], 1), torch.cat([m.final for m in made]))
        yield Scheduled(tables, [starts[key] + np.arange(count_of(key)) for key in keys])
