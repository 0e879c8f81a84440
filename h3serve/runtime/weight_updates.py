"""New weights for a served transformer: refused before the first byte is written, or carried through everything.

What modulation depends on is not all in memory: the AdaLN projections are read from a checkpoint whenever tables
are computed. So weights are only taken together with the checkpoint that holds their projections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from h3serve.core.errors import CheckpointError, H3Error, RequestError, WorkerError
from h3serve.core.limits import Partition
from h3serve.models.kernels.float8_linear import Float8Linear
from h3serve.models.key_map import Entry
from h3serve.models.transformer.denoiser import PREFIX, Denoiser, is_projection, param_dtype
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.modulation_tables import TableShape
from h3serve.runtime.adaln.rebuild import Projections
from h3serve.runtime.loading import open_sidecars
from h3serve.runtime.offload.placement import OffloadedNetwork, Placement, from_files, held_by
from h3serve.runtime.offload.weight_store import FileStore
from h3serve.weights.files.checkpoint_folder import ModelFolder
from h3serve.weights.files.tensor_index import TensorIndex
from h3serve.weights.formats.entry_rows import arrange, runs_of
from h3serve.weights.formats.header_checks import adapter_layer
from h3serve.weights.formats.inspection import inspect_component
from h3serve.weights.formats.load import read_tensors, stored_entries
from h3serve.weights.formats.opened_component import OpenedComponent, open_component
from h3serve.weights.formats.weight_checks import report

NAME = "transformer"
Dropped = dict[str, int]  # what each cache held that is not valid any more


@dataclass(frozen=True)
class Source:
    """A checkpoint that new weights come from, checked against the served network."""

    opened: OpenedComponent
    entries: tuple[Entry, ...]  # all but the projections
    projections: Projections

    @property
    def index(self) -> TensorIndex:
        """Its stored tensors."""
        return self.opened.index


@dataclass(frozen=True)
class Updates:
    """Weight updates of one served transformer. Every rank makes the same calls; none while a request runs."""

    placement: Placement[nn.Module]
    tiers: AdaLN
    partition: Partition
    device: torch.device
    cache: Path

    def from_disk(self, folder: ModelFolder) -> Dropped:
        """All weights from another checkpoint of the same size; CheckpointError or RequestError if it is refused."""
        return self.write(self.validate_weight_update_source(folder))

    def from_tensors(self, tensors: Mapping[str, torch.Tensor], folder: ModelFolder | None) -> Dropped:
        """Some weights, by our names; `folder` is the checkpoint that holds the projections which belong to them."""
        self.validate_lora_layers(tensors)
        if folder is None:
            raise RequestError(
                "source",
                None,
                "tensors need the checkpoint they belong to: modulation is computed from projections that are "
                "read from disk, and would go on with the old ones",
            )
        source = self.validate_weight_update_source(folder)
        self.validate_tensors(tensors, source)
        return self.write(source, tensors)

    def write(self, source: Source, tensors: Mapping[str, torch.Tensor] | None = None) -> Dropped:
        """Everything of a validated source, or these validated tensors alone; returns what is not valid any more.

        WorkerError if it breaks off: then the model holds weights of two checkpoints.
        """
        with _whole_or_broken(), torch.no_grad():
            if tensors is not None:
                held = held_by(self.placement, NAME)
                for name, value in tensors.items():
                    held[name].copy_(value)
            elif self._is_in_files:
                self._reopen(source)
            else:
                self._read(source)
        return self.refresh_weight_derived_caches(source)

    def validate_weight_update_source(self, folder: ModelFolder) -> Source:
        """A checkpoint's tensors if they can replace the served ones; nothing is written.

        CheckpointError for files that are damaged, of another size or of the other partition; RequestError
        where served weights cannot be replaced at all.
        """
        module = self.placement.module
        assert isinstance(module, Denoiser)
        if any(isinstance(layer, Float8Linear) for layer in module.modules()):
            raise RequestError("weights", "8-bit", "they were quantized when they were loaded; load the model anew")
        opened = open_component(folder, NAME, self.partition)
        if opened.config != module.config:
            raise CheckpointError(f"{opened.index.folder} is of another size than the served model")
        report(opened.index.folder, inspect_component(opened).findings)
        ours = tuple(entry for entry in opened.key_map.entries if not is_projection(entry.target))
        return Source(opened, ours, Projections(opened.index, opened.key_map, self._dtype(module)))

    def validate_lora_layers(self, names: Iterable[str]) -> None:
        """RequestError if any of these tensors is a layer of an adapter: what it changes would have to be undone.

        And of modulation it would change what tables are made from, which is read from the checkpoint.
        """
        if layer := adapter_layer(names):
            raise RequestError(
                "lora",
                layer,
                "layers of an adapter are no weights: name it in a request's adapters, or merge it into a checkpoint",
            )

    def validate_tensors(self, tensors: Mapping[str, torch.Tensor], source: Source) -> None:
        """RequestError unless these can replace served weights and belong to the source."""
        self.validate_lora_layers(tensors)
        if self._is_in_files:
            raise RequestError("tensors", len(tensors), "the weights stay in their files; update from disk instead")
        held = held_by(self.placement, NAME)
        for name, value in tensors.items():
            _check_tensor(name, value, held)
        fixed = read_tensors(source.index, source.entries, {name for name in tensors if name.startswith(PREFIX)})
        for name, theirs in fixed.items():
            value = tensors[name].cpu()
            if not torch.equal(theirs.to(value.dtype), value):
                raise RequestError("tensors", name, "modulation depends on it, but the source has another value")

    def refresh_weight_derived_caches(self, source: Source) -> Dropped:
        """Nothing that was computed from the old weights is used again; the projections are the source's now.

        Encoded prompts and references stay: other networks made them.
        """
        shape = TableShape.of(self.placement.module.config)  # type: ignore[arg-type]
        sidecars = None
        if self.tiers.sidecars is not None:
            sidecars = open_sidecars(source.projections, self.partition, shape, device=self.device, cache=self.cache)
        return self.tiers.refresh(source.projections, sidecars)

    @property
    def _is_in_files(self) -> bool:
        return isinstance(getattr(self.placement, "store", None), FileStore)

    def _read(self, source: Source) -> None:
        held = held_by(self.placement, NAME)
        device = next(iter(held.values())).device
        for entry, stored in stored_entries(source.index, source.entries, device):
            arrange(runs_of(entry, source.index), stored, held[entry.target])

    def _reopen(self, source: Source) -> None:
        placement = self.placement
        assert isinstance(placement, OffloadedNetwork)
        dtype = self._dtype(placement.module)
        opened = from_files(
            placement.module,
            NAME,
            source.index,
            source.entries,
            dtype_of=lambda name: param_dtype(name, dtype),
            device=self.device,
            stream=None,
        )
        placement.store.close()
        placement.store = opened.store

    @staticmethod
    def _dtype(module: nn.Module) -> torch.dtype:
        assert isinstance(module, Denoiser)
        return module.transformer.compute_dtype


def _check_tensor(name: str, value: torch.Tensor, held: Mapping[str, torch.Tensor]) -> None:
    if is_projection(name):
        raise RequestError("tensors", name, "projections are read from the source, they are not sent")
    if name not in held or held[name].shape != value.shape:
        raise RequestError("tensors", name, "no weight of the served model has this name and shape")
    if not bool(torch.isfinite(value).all()):
        raise RequestError("tensors", name, "it holds NaN or Inf")


@contextmanager
def _whole_or_broken() -> Iterator[None]:
    """A failure inside leaves weights of two checkpoints: the worker has to be started anew."""
    try:
        yield
    except (H3Error, OSError) as error:
        raise WorkerError(f"the update broke off, the model holds weights of two checkpoints: {error}") from error
