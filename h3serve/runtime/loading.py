"""Loads a network straight to where its placement wants it, and builds the AdaLN tiers beside a transformer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from h3serve.core.errors import CapacityError
from h3serve.core.estimate_memory import SLAB_BYTES, SLOTS
from h3serve.core.estimate_work import GIB
from h3serve.core.limits import Partition
from h3serve.models.module_tensors import nothing
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.transformer.denoiser import PREFIX, Denoiser, is_projection
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.device_slab import Slab
from h3serve.runtime.adaln.host_pages import PageCache, page_count
from h3serve.runtime.adaln.modulation_tables import TableShape
from h3serve.runtime.adaln.rebuild import Projections
from h3serve.runtime.adaln.sidecar import Origin, SidecarFolder
from h3serve.runtime.checkpoint_identity import identities_in, maker_of
from h3serve.runtime.offload.placement import (
    Mode,
    OffloadedNetwork,
    Placement,
    Resident,
    Streaming,
    from_files,
    from_host,
    held_by,
)
from h3serve.runtime.offload.weight_store import FileStore
from h3serve.system.host_memory import host_memory
from h3serve.weights.formats.entry_rows import Shard
from h3serve.weights.formats.inspection import inspect_component
from h3serve.weights.formats.load import check_loaded, load_component
from h3serve.weights.formats.opened_component import OpenedComponent
from h3serve.weights.formats.weight_checks import report

log = logging.getLogger(__name__)

PAGE_BYTES = 8_000_000_000  # host pages of one rank
SIDECAR_BYTES = 32 * GIB  # tables of one model on disk
DTYPE_OF = "transformer.final_layer.norm."  # where a denoiser's compute dtype is read from
SAY_S = 5.0  # between two lines about a load
SMALL = GIB  # projections that are read sooner than their tables would be


@dataclass(frozen=True)
class How:
    """Where one network's weights live, and where their host side is."""

    mode: Mode = "resident"
    in_files: bool = False
    resident_blocks: int = 0
    shard: Shard | None = None  # of a resident network: a rank's share


def place(
    opened: OpenedComponent,
    how: How,
    *,
    device: torch.device,
    dtype: torch.dtype,
    float8: bool = False,
) -> Placement[nn.Module]:
    """A component under its placement; of the transformer, all but the blocks' AdaLN projections.

    CheckpointError as in `load_component`; CapacityError if the host cannot hold what it should.
    8-bit weights are made while loading, so they cannot be left in their files.
    """
    assert not (float8 and how.in_files)
    name = opened.name
    skip = is_projection if name == "transformer" else nothing
    stream = Streaming(resident_blocks=how.resident_blocks, cyclic=True) if how.mode == "stream" else None
    if stream and name != "transformer":
        stream = Streaming()
    if how.mode != "resident" and not how.in_files:
        check_host(opened, skip, float8=float8)
    if how.shard is not None or float8:
        load = {"dtype": dtype, "float8": float8, "skip": skip, "shard": how.shard}
        if how.mode == "resident":
            return Resident(load_component(opened, device=device, **load))  # type: ignore[arg-type]
        assert how.shard is None, "only resident networks are sharded"
        return from_host(load_component(opened, **load), name, device=device, stream=stream)  # type: ignore[arg-type]
    began = time.perf_counter()
    network = _in_files(opened, device=device, dtype=dtype, skip=skip, stream=stream)
    if how.in_files:
        report(opened.index.folder, inspect_component(opened).findings)
        return network
    assert isinstance(network.store, FileStore)
    network.store.reader.on_read = _Progress(name, sum(flat.num_bytes for flat in network.store.flats))
    placement = network.make_resident() if how.mode == "resident" else network.into_memory()
    check_loaded(opened, held_by(placement, name))
    _say(name, network, time.perf_counter() - began)
    return placement


class _Progress:
    """Says now and then how far a component's load is, and how quickly it goes."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._began = self._said = time.perf_counter()

    def __call__(self, done: int) -> None:
        now = time.perf_counter()
        if now - self._said >= SAY_S:
            self._said = now
            rate = done / GIB / (now - self._began)
            log.info("%s: %.1f of %.1f GiB, %.2f GiB/s", self._name, done / GIB, self._total / GIB, rate)


def _say(name: str, network: OffloadedNetwork[nn.Module], seconds: float) -> None:
    size = sum(flat.num_bytes for flat in network.store.flats) / GIB
    log.info("%s: %.2f GiB in %.1f s, %.2f GiB/s", name, size, seconds, size / seconds)


def check_host(opened: OpenedComponent, skip: Callable[[str], bool], *, float8: bool = False) -> None:
    """CapacityError, before a byte is read, if the host's free memory cannot take the component."""
    eight = opened.recipe.float8_linears if float8 else ()
    needed, (_, free) = 0, host_memory()
    for entry in opened.key_map.entries:
        if not skip(entry.target):
            quantized = any(fnmatchcase(entry.target, f"{pattern}.weight") for pattern in eight)
            stored = [opened.index.tensors[source] for source in entry.sources]
            needed += sum(math.prod(t.shape) if quantized else t.num_bytes for t in stored)
    if needed > free:
        raise CapacityError(
            f"{opened.name} needs {needed / GIB:.1f} GiB of host memory, {free / GIB:.1f} GiB are free: "
            "free some, or let the weights stay in their files"
        )


def build_tiers(
    denoiser: Denoiser,
    opened: OpenedComponent,
    *,
    device: torch.device,
    cache: Path,
    smallest: Callable[[int], int] = lambda count: count,
    writes: bool = True,
) -> AdaLN:
    """The AdaLN tiers of a denoiser that was loaded without its projections.

    `smallest` is the minimum over ranks. Sidecars go under `cache`; a small model has none, its
    projections are read sooner than their tables would be.
    """
    shape, dtype = TableShape.of(denoiser.config), denoiser.transformer.compute_dtype
    projections = Projections(opened.index, opened.key_map, dtype)
    page = shape.values * dtype.itemsize
    count = page_count(shape, dtype, limit_bytes=PAGE_BYTES, free_bytes=host_memory()[1], smallest=smallest)
    return AdaLN(
        denoiser.modulation,
        projections,
        slab=Slab(shape, SLOTS, limit=SLAB_BYTES // page, device=device, dtype=dtype),
        pages=PageCache(shape, count, device=device, dtype=dtype),
        sidecars=open_sidecars(projections, opened.partition, shape, device=device, cache=cache),
        writes=writes,
    )


def load_modulation(opened: OpenedComponent, *, device: torch.device, dtype: torch.dtype, cache: Path) -> AdaLN:
    """The AdaLN tiers of a checkpoint alone: nothing else of its transformer is read."""
    module = load_component(
        opened,
        device=device,
        dtype=dtype,
        skip=lambda name: is_projection(name) or not name.startswith((PREFIX, DTYPE_OF)),
    )
    assert isinstance(module, Denoiser)
    return build_tiers(module, opened, device=device, cache=cache)


def open_sidecars(
    projections: Projections, partition: Partition, shape: TableShape, *, device: torch.device, cache: Path
) -> SidecarFolder | None:
    """The folder of these projections' tables; None where they are not worth a file."""
    if projections.num_bytes < SMALL:
        return None
    identity = identities_in(cache).of(projections.index, projections.sources)
    origin = Origin(partition, identity, maker_of(device), shape, projections.dtype)
    return SidecarFolder(cache / "adaln" / f"{partition}-{identity[:12]}", origin, limit_bytes=SIDECAR_BYTES)


def _in_files(
    opened: OpenedComponent,
    *,
    device: torch.device,
    dtype: torch.dtype,
    skip: Callable[[str], bool],
    stream: Streaming | None,
) -> OffloadedNetwork[nn.Module]:
    module = opened.build()
    if isinstance(module, TextEncoder):
        module.reset_buffers(device)
    return from_files(
        module,
        opened.name,
        opened.index,
        [entry for entry in opened.key_map.entries if not skip(entry.target)],
        dtype_of=lambda target: opened.dtype_of(target, dtype),
        device=device,
        stream=stream,
    )
