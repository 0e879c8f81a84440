"""Adapters in host memory, ready for one transformer: read when a request first names them, kept by a byte budget."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from h3serve.core.errors import CheckpointError, RequestError
from h3serve.core.estimate_work import GIB
from h3serve.core.request_values import AdapterChoice
from h3serve.core.settings import ADAPTER_SUFFIX
from h3serve.runtime.adapters.adapter_terms import Term, terms_of
from h3serve.system.named_files import named_files, sha256_of, state_of
from h3serve.weights.adapters.open_adapter import Adapter, open_adapter
from h3serve.weights.adapters.updates import Update
from h3serve.weights.formats.load import read_tensors
from h3serve.weights.formats.opened_component import OpenedComponent

log = logging.getLogger(__name__)

NAMED = 20  # names in a sentence
HELD_BYTES = 8 * GIB  # of host memory, by one transformer's adapters


@dataclass(frozen=True)
class ReadyAdapter:
    """An adapter's terms by the layer that they belong to, whole layers, at strength 1, and what is told of it."""

    path: Path
    sha256: str
    terms: Mapping[str, tuple[Term, ...]]
    told: Mapping[str, Any]
    replaces: str | None = field(default=None)  # a tensor that it replaces, so that its strength is 0 or 1

    @property
    def num_bytes(self) -> int:
        """Host memory held."""
        return sum(tensor.nbytes for terms in self.terms.values() for term in terms for tensor in term.tensors)


class AdapterShelf:
    """The adapters of one transformer, as its checkpoint has it."""

    def __init__(self, opened: OpenedComponent, *, folder: Path | None = None, limit_bytes: int = HELD_BYTES) -> None:
        """Without `folder` a request names adapters by their paths, with it by their names inside."""
        self._opened, self._folder, self._limit = opened, folder, limit_bytes
        self._is_whole = True  # the served weights are the checkpoint's
        self._held: OrderedDict[tuple[str, int, int, int], ReadyAdapter] = OrderedDict()

    def take(self, choice: AdapterChoice, where: str) -> ReadyAdapter:
        """The adapter that a request names in its field `where`, from memory or read now.

        RequestError for a name, content or strength that cannot be had; a file that does not fit this transformer is
        one too, with the sentence that `open_adapter` has for it.
        """
        path = adapter_path(choice.name, self._folder, f"{where}.name")
        try:
            state, found = state_of(path), sha256_of(path)
            if choice.sha256 not in (None, found):
                said = f"{path.name} has the SHA-256 {found} now: name that one, or leave it out"
                raise RequestError(f"{where}.sha256", choice.sha256, said)
            ready = self._held.pop(state, None) or self._read(path, found)
            if state_of(path) != state:
                raise RequestError(f"{where}.name", choice.name, "the file changed while it was read: send it again")
        except (CheckpointError, OSError) as error:
            said = f"{error.strerror or error}" if isinstance(error, OSError) else str(error)
            raise RequestError(f"{where}.name", choice.name, said) from None
        self._held[state] = ready
        self._trim()
        if ready.replaces and choice.strength not in (0, 1):
            said = f"0 or 1: it replaces {ready.replaces}, and nobody defines half of that"
            raise RequestError(f"{where}.strength", choice.strength, said)
        return ready

    def rebase(self, opened: OpenedComponent, *, is_whole: bool) -> None:
        """Drops all, which were prepared for weights that are others now: those of `opened`, or not all of them."""
        self._held.clear()
        self._opened, self._is_whole = opened, is_whole

    def _read(self, path: Path, sha256: str) -> ReadyAdapter:
        adapter = open_adapter(path, self._opened.config, partition=self._opened.partition)
        if adapter.needs:
            raise CheckpointError(f"{path} cannot run here yet: it needs {', '.join(adapter.needs)}")
        terms: dict[str, list[Term]] = defaultdict(list)
        for update in adapter.updates:
            terms[update.path] += terms_of(update, partial(self._base, update))
        by_layer = {layer: tuple(found) for layer, found in terms.items()}
        ready = ReadyAdapter(path, sha256, by_layer, _told(adapter), _replaced(adapter))
        log.info("adapter %s: %d of %d layers", path.name, adapter.layers, adapter.layers_there)
        for warning in adapter.warnings:
            log.warning("%s", warning)
        return ready

    def _base(self, update: Update) -> torch.Tensor:
        """The rows that `update` changes, as the checkpoint has them."""
        if not self._is_whole:
            raise CheckpointError(f"it depends on {update.target} itself, and single tensors were replaced since")
        whole = read_tensors(self._opened.index, self._opened.key_map.entries, {update.target})[update.target]
        return whole[update.first : update.first + update.rows]

    def _trim(self) -> None:
        """Least recently used first; the last one taken stays, whatever its size."""
        while len(self._held) > 1 and sum(ready.num_bytes for ready in self._held.values()) > self._limit:
            self._held.popitem(last=False)


def adapter_path(name: str, folder: Path | None, where: str) -> Path:
    """The file that `name` means: a path, or in a `folder` its name there. RequestError, of the field `where`."""
    if folder is None:
        return Path(name).expanduser().absolute()
    there = named_files(folder, ADAPTER_SUFFIX)
    if name not in there:
        names = ", ".join(list(there)[:NAMED]) + ", ..." * (len(there) > NAMED)
        raise RequestError(where, name, f"one of {names}" if there else "the adapter folder is empty")
    return there[name]


def _told(adapter: Adapter) -> dict[str, Any]:
    return {
        "dialect": adapter.dialect,
        "layers": adapter.layers,
        "of_layers": adapter.layers_there,
        "ranks": sorted({scale.rank for scale in adapter.scales}),
        "alphas": sorted({scale.alpha for scale in adapter.scales}),
        "trained_on": adapter.trained_on,
        "warnings": list(adapter.warnings),
    }


def _replaced(adapter: Adapter) -> str | None:
    return next((update.target for update in adapter.updates if not update.strength_linear), None)
