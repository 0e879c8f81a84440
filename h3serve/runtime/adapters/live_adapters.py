"""The adapters on a served transformer: those of the request that runs, and no others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from h3serve.core.request_values import AdapterChoice
from h3serve.models.transformer.denoiser import PREFIX, Denoiser, param_dtype
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adapters.adapted_layer import AdaptedLayer, Sum
from h3serve.runtime.adapters.adapter_shelf import AdapterShelf, ReadyAdapter
from h3serve.runtime.adapters.adapter_terms import Term, shard_term
from h3serve.weights.formats.entry_rows import PartOf, everything
from h3serve.weights.formats.opened_component import OpenedComponent


@dataclass(frozen=True)
class ChosenAdapter:
    """An adapter that a request names, read and checked."""

    name: str
    strength: float
    ready: ReadyAdapter

    @property
    def key(self) -> tuple[str, float]:
        """What it does: its content and strength."""
        return self.ready.sha256, self.strength

    @property
    def changes_modulation(self) -> bool:
        """Whether tables that were computed without it are not its own."""
        return any(path.startswith(PREFIX) for path in self.ready.terms)

    def describe(self) -> dict[str, Any]:
        """Its name, hash and strength, and what its file tells."""
        return {"name": self.name, "sha256": self.ready.sha256, "strength": self.strength, **self.ready.told}


Chosen = tuple[ChosenAdapter, ...]


class LiveAdapters:
    """What of adapters is on one transformer. Every rank makes the same calls, none while evaluations run."""

    def __init__(
        self,
        denoiser: Denoiser,
        shelf: AdapterShelf,
        *,
        device: torch.device,
        tiers: AdaLN | None = None,
        part_of: PartOf = everything,
    ) -> None:
        """`tiers` hold the modulation that adapters may change; `part_of` says what this rank has of a tensor."""
        self.current: Chosen | None = ()  # None: putting them on broke off
        self._denoiser, self._shelf, self._device = denoiser, shelf, device
        self._part_of = part_of
        self._tiers, self._sidecars = tiers, None if tiers is None else tiers.sidecars
        self._tables_of: Chosen = ()  # what the tiers' tables were computed with
        self._hooks: list[RemovableHandle] = []

    def choose(self, wanted: Sequence[AdapterChoice]) -> Chosen:
        """Reads what a request names; RequestError, and nothing has changed, for one that cannot be had."""
        taken = [self._shelf.take(choice, f"adapters[{number}]") for number, choice in enumerate(wanted)]
        return tuple(ChosenAdapter(w.name, w.strength, ready) for w, ready in zip(wanted, taken, strict=True))

    def use(self, chosen: Chosen) -> None:
        """Makes these the transformer's adapters; what is there already stays. Without any it has the base's bits.

        Modulation is computed anew where an adapter of it came or went: no sidecar holds such tables.
        """
        if self.current is None or _keys(chosen) != _keys(self.current):
            self._remove()  # first: a device may not hold both
            for path, terms in self._terms(chosen).items():
                self._hooks.append(self._denoiser.get_submodule(path).register_forward_hook(self._layer(path, terms)))
            self._renew_tables(tuple(adapter for adapter in chosen if adapter.changes_modulation))
        self.current = chosen

    def rebase(self, opened: OpenedComponent, *, is_whole: bool) -> None:
        """Removes all before new weights come; `is_whole` says whether they are all of that checkpoint."""
        self.use(())
        self._shelf.rebase(opened, is_whole=is_whole)

    def num_bytes(self, chosen: Chosen) -> int:
        """Device memory that adapters take on this rank."""
        return sum(
            sum(tensor.numel() for term in terms for tensor in term.tensors) * self._dtype_of(path).itemsize
            for path, terms in self._terms(chosen).items()
        )

    def _terms(self, chosen: Chosen) -> dict[str, list[Term]]:
        """This rank's terms of every layer that adapters change, with their strengths inside."""
        found: dict[str, list[Term]] = defaultdict(list)
        for adapter in chosen:
            for path, terms in adapter.ready.terms.items() if adapter.strength else ():
                own = (self._own(path, term) for term in terms)
                found[path] += [term.times(adapter.strength) for term in own if term is not None]
        return {path: terms for path, terms in found.items() if terms}

    def _own(self, path: str, term: Term) -> Term | None:
        part = self._part_of(f"{path}.weight")
        if part is None:
            return term
        outputs = _outputs(self._denoiser.get_submodule(path))
        return shard_term(term, part, outputs if part.axis else outputs * part.count)

    def _layer(self, path: str, terms: Sequence[Term]) -> AdaptedLayer:
        layer = self._denoiser.get_submodule(path)
        dtype, total = self._dtype_of(path), _sum_of(layer)
        return AdaptedLayer(terms, outputs=_outputs(layer), device=self._device, dtype=dtype, total=total)

    def _dtype_of(self, path: str) -> torch.dtype:
        return param_dtype(f"{path}.weight", self._denoiser.transformer.compute_dtype)

    def _remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.current = [], None

    def _renew_tables(self, chosen: Chosen) -> None:
        if self._tiers is None or _keys(chosen) == _keys(self._tables_of):
            return
        if not _keys(self._tables_of):
            self._sidecars = self._tiers.sidecars
        self._tables_of = chosen
        self._tiers.refresh(self._tiers.projections, None if _keys(chosen) else self._sidecars)


def _keys(chosen: Chosen) -> list[tuple[str, float]]:
    return [adapter.key for adapter in chosen if adapter.strength]


def _outputs(layer: nn.Module) -> int:
    outputs = layer.out_features
    assert isinstance(outputs, int)
    return outputs


def _sum_of(layer: nn.Module) -> Sum | None:
    """How products of a layer whose inputs ranks divide become one."""
    group = getattr(layer, "group", None)
    return None if group is None else group.all_reduce
