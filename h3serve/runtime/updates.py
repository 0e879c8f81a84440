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
from h3serve.core.tasks import Partition
from h3serve.models.denoiser import Denoiser, key_map, param_dtype
from h3serve.models.float8_linear import Float8Linear
from h3serve.models.keymap import Entry
from h3serve.runtime.adaln import AdaLN
from h3serve.runtime.keys import TableShape
from h3serve.runtime.loading import open_sidecars
from h3serve.runtime.placement import Placement, Visiting, from_files, held_by
from h3serve.runtime.rebuild import PREFIX, Projections, is_projection
from h3serve.runtime.store import FileStore
from h3serve.weights.canary import report
from h3serve.weights.index import TensorIndex, read_index
from h3serve.weights.inspect import inspect_component
from h3serve.weights.layout import ModelFolder
from h3serve.weights.load import EntryReader, check_names, check_shape

NAME = "transformer"


@dataclass(frozen=True)
class Source:
    """A checkpoint that new weights come from, checked against the served network."""

    index: TensorIndex
    entries: tuple[Entry, ...]
    projections: Projections


@dataclass(frozen=True)
class Updates:
    """Weight updates of one served transformer. Every rank makes the same calls; none while a request runs."""

    placement: Placement[nn.Module]
    tiers: AdaLN
    partition: Partition
    device: torch.device
    cache: Path

    def from_disk(self, folder: ModelFolder) -> None:
        """All weights from another checkpoint of the same size; CheckpointError or RequestError if it is refused."""
        source = self.validate_weight_update_source(folder)
        store = getattr(self.placement, "store", None)
        with _whole_or_broken():
            if isinstance(store, FileStore):
                self._reopen(source)
            else:
                held = held_by(self.placement, NAME)
                with EntryReader(source.index) as reader:
                    for entry in source.entries:
                        reader.read(entry, held[entry.target])
        self.refresh_weight_derived_caches(source)

    def from_tensors(self, tensors: Mapping[str, torch.Tensor], folder: ModelFolder | None) -> None:
        """Some weights, by our names; `folder` is the checkpoint that holds the projections which belong to them."""
        if folder is None:
            raise RequestError(
                "source",
                None,
                "tensors need the checkpoint they belong to: modulation is computed from projections that are "
                "read from disk, and would go on with the old ones",
            )
        source = self.validate_weight_update_source(folder)
        if isinstance(getattr(self.placement, "store", None), FileStore):
            raise RequestError("tensors", len(tensors), "the weights stay in their files; update from disk instead")
        held = held_by(self.placement, NAME)
        self._check_tensors(tensors, held, source)
        with _whole_or_broken(), torch.no_grad():
            for name, value in tensors.items():
                held[name].copy_(value)
        self.refresh_weight_derived_caches(source)

    def validate_weight_update_source(self, folder: ModelFolder) -> Source:
        """A checkpoint's tensors if they can replace the served ones; nothing is written.

        CheckpointError for files that are damaged, of another size or of the other partition; RequestError
        where served weights cannot be replaced at all.
        """
        module = self.placement.module
        assert isinstance(module, Denoiser)
        if any(isinstance(layer, Float8Linear) for layer in module.modules()):
            raise RequestError("weights", "8-bit", "they were quantized when they were loaded; load the model anew")
        folder.partition(self.partition)
        component = folder.component(NAME, self.partition)
        index, names = read_index(component.weights), key_map(module.config, folder.layout)
        if type(module.config).from_dict(component.config) != module.config:
            raise CheckpointError(f"{component.folder} is of another size than the served model")
        check_names(index, names)
        shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
        for entry in names.entries:
            check_shape(entry, index, shapes[entry.target])
        report(component.weights, inspect_component(folder, NAME, self.partition).findings)
        ours = tuple(entry for entry in names.entries if not is_projection(entry.target))
        return Source(index, ours, Projections(index, names, self._dtype(module)))

    def validate_lora_layers(self, layers: Iterable[str]) -> None:
        """RequestError for adapters of layers that modulation depends on: its tables come from the checkpoint."""
        if touched := sorted(name for name in layers if name.startswith(PREFIX)):
            raise RequestError(
                "lora", touched[0], "modulation comes from the checkpoint; merge this adapter into a checkpoint instead"
            )

    def refresh_weight_derived_caches(self, source: Source) -> None:
        """Nothing that was computed from the old weights is used again; the projections are the source's now."""
        shape = TableShape.of(self.placement.module.config)  # type: ignore[arg-type]
        sidecars = None
        if self.tiers.sidecars is not None:
            sidecars = open_sidecars(source.projections, self.partition, shape, device=self.device, cache=self.cache)
        self.tiers.refresh(source.projections, sidecars)

    def _check_tensors(
        self, tensors: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor], source: Source
    ) -> None:
        entries = {entry.target: entry for entry in source.entries}
        with EntryReader(source.index) as reader:
            for name, value in tensors.items():
                if is_projection(name):
                    raise RequestError("tensors", name, "projections are read from the source, they are not sent")
                if name not in held or held[name].shape != value.shape:
                    raise RequestError("tensors", name, "no weight of the served model has this name and shape")
                if not bool(torch.isfinite(value).all()):
                    raise RequestError("tensors", name, "it holds NaN or Inf")
                if name.startswith(PREFIX):
                    theirs = torch.empty(value.shape, dtype=value.dtype)
                    reader.read(entries[name], theirs)
                    if not torch.equal(theirs, value.cpu()):
                        raise RequestError(
                            "tensors", name, "modulation depends on it, but the source has another value"
                        )

    def _reopen(self, source: Source) -> None:
        placement = self.placement
        assert isinstance(placement, Visiting)
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


@contextmanager
def _whole_or_broken() -> Iterator[None]:
    """A failure inside leaves weights of two checkpoints: the worker has to be started anew."""
    try:
        yield
    except (H3Error, OSError) as error:
        raise WorkerError(f"the update broke off, the model holds weights of two checkpoints: {error}") from error
