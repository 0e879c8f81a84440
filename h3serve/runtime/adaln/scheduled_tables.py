"""A request's modulation, ready for all of its steps; where it comes from is the source's affair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from h3serve.models.transformer.modulation import Modulation, ModulationNetwork
from h3serve.runtime.adaln.table_keys import count_of, distinct, key_of, timesteps_of

Steps = Sequence[NDArray[np.float32]]  # distinct timesteps of every step, ascending


@dataclass(frozen=True)
class Scheduled:
    """One set of tables for all steps, and where in it each timestep is.

    `slots[i]`, int64 [M], are the tables' slots of step i's distinct timesteps: what a row's
    timestep index has to be.
    """

    modulation: Modulation
    slots: list[NDArray[np.int64]]


class ModulationSource(Protocol):
    """Whatever turns a request's timesteps into tables."""

    def schedule(self, steps: Steps) -> AbstractContextManager[Scheduled]:
        """The tables of all steps, good until the block ends."""


class Direct:
    """Tables straight from a network whose projections are in memory; nothing is kept."""

    def __init__(self, network: ModulationNetwork) -> None:
        self._network = network

    @contextmanager
    def schedule(self, steps: Steps) -> Iterator[Scheduled]:
        """All steps of a request."""
        keys = [key_of(timesteps) for timesteps in steps]
        device = next(self._network.time_embedder.parameters()).device
        made, starts, at = [], {}, 0
        for key in distinct(keys):
            made.append(self._network(timesteps_of(key).to(device)))
            starts[key], at = at, at + count_of(key)
        tables = Modulation(torch.cat([m.blocks for m in made], 1), torch.cat([m.final for m in made]))
        yield Scheduled(tables, [starts[key] + np.arange(count_of(key)) for key in keys])
