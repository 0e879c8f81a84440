"""AdaLN tiers: cold rebuild, pages, sidecar and slab against the floor, and their bits.

24.3 GiB of projections are written to the temporary folder, and deleted at the end.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from bench.memory.run import GIB, SHIFTS, Results, Run, drop_projections, synthetic
from h3serve.core.estimate_memory import SLOTS
from h3serve.models.transformer.denoiser import Denoiser, key_map
from h3serve.models.transformer.modulation import Modulation
from h3serve.pipeline.schedule import default_times
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.device_slab import Slab
from h3serve.runtime.adaln.host_pages import PageCache
from h3serve.runtime.adaln.modulation_tables import TableShape
from h3serve.runtime.adaln.rebuild import Projections
from h3serve.runtime.adaln.sidecar import Origin, SidecarFolder
from h3serve.runtime.checkpoint_identity import Identities, maker_of
from h3serve.weights.files import memory_buffers
from h3serve.weights.files.tensor_index import read_index
from h3serve.weights.files.tensor_reader import TensorReader

STEPS_COMPARED = (0, 1, 25, 49)


def tiers_part(run: Run, found: Results) -> None:
    """The default schedule from every tier."""
    denoiser, times = synthetic(run).denoisers["fl2va"], default_times("fl2va", SHIFTS)
    expected = {s: denoiser.modulation(torch.from_numpy(times[s]).to(run.device)) for s in STEPS_COMPARED}
    with tempfile.TemporaryDirectory(prefix="h3-projections-") as name:
        folder = Path(name)
        found["write_projections_s"] = run.seconds(lambda: write_projections(denoiser, folder / "model.safetensors"))
        drop_projections(run, denoiser)
        _measure(run, _Tiers(run, denoiser, folder), times, expected, found)


class _Tiers:
    """Builds AdaLN fronts over the written projections."""

    def __init__(self, run: Run, denoiser: Denoiser, folder: Path) -> None:
        self.run, self.denoiser, self.folder = run, denoiser, folder
        self.shape = TableShape.of(denoiser.config)
        self.projections = Projections(read_index(folder), key_map(denoiser.config, "original"), run.dtype)

    def make(self, *, pages: int, sidecars: Path | None = None) -> AdaLN:
        shape, device, dtype = self.shape, self.run.device, self.run.dtype
        origin = Origin(
            "fl2va",
            Identities(None).of(self.projections.index, self.projections.sources),
            maker_of(device),
            shape,
            dtype,
        )
        return AdaLN(
            self.denoiser.modulation,
            self.projections,
            slab=Slab(shape, SLOTS, limit=4 * SLOTS, device=device, dtype=dtype),
            pages=PageCache(shape, pages, device=device, dtype=dtype),
            sidecars=SidecarFolder(sidecars, origin, limit_bytes=8 * GIB) if sidecars else None,
        )


def _measure(
    run: Run, tiers: _Tiers, times: Sequence[np.ndarray], expected: Mapping[int, Modulation], found: Results
) -> None:
    front = tiers.make(pages=2 * SLOTS)
    found |= {"link_gb_s": _link_rate(run), "page_cache_read_gb_s": _read_rate(run, tiers.projections)}
    found["timesteps"] = sum(map(len, times))
    found["cold_prepare_s"] = run.seconds(lambda: front.prepare(times))
    found["rebuild_s"] = round(front.stats()["rebuild"]["seconds"], 3)
    found["rebuild_floor_link_s"] = round(front.stats()["rebuild"]["bytes"] / found["link_gb_s"] / 1e9, 3)
    found["rebuild_floor_read_s"] = round(front.stats()["rebuild"]["bytes"] / found["page_cache_read_gb_s"] / 1e9, 3)
    found["bits_equal_resident_projection"] = _same(front, times, expected)
    found["slab_hit_ms"] = round(1000 * min(run.seconds(lambda: front.prepare(times)) for _ in range(3)), 2)
    front.pages.settle()
    front.slab.clear()
    found["pages_s"] = run.seconds(lambda: front.prepare(times))
    moved = tiers.shape.values * run.dtype.itemsize * found["timesteps"]
    found["pages_floor_s"] = round(moved / found["link_gb_s"] / 1e9, 4)
    found["bits_equal_from_pages"] = _same(front, times, expected)
    kept = tiers.make(pages=0, sidecars=tiers.folder / "tables")
    found["prepare_and_write_sidecar_s"] = run.seconds(lambda: kept.prepare(times))
    found["rebuild_again_s"] = round(kept.stats()["rebuild"]["seconds"], 3)
    fresh = tiers.make(pages=0, sidecars=tiers.folder / "tables")
    found["sidecar_s"] = run.seconds(lambda: fresh.prepare(times))
    found["bits_equal_from_sidecar"] = _same(fresh, times, expected)
    found["sidecar_hits"] = fresh.stats()["sidecar"]["hits"]


def _same(front: AdaLN, times: Sequence[np.ndarray], expected: Mapping[int, Modulation]) -> bool:
    with front.schedule(times) as ready:
        equal = True
        for step, tables in expected.items():
            slots = torch.from_numpy(ready.slots[step])
            rows = (3 * slots[:, None] + torch.arange(3)).flatten().to(front.slab.device)
            equal &= torch.equal(ready.modulation.blocks[:, rows], tables.blocks)
            equal &= torch.equal(ready.modulation.final[slots.to(front.slab.device)], tables.final)
        return equal


def _link_rate(run: Run) -> float:
    """GB/s of pinned host memory to the device."""
    size = 2**20 if run.tiny else 2**30
    host, there = memory_buffers.host_buffer(size, pinned=run.is_cuda), memory_buffers.device_buffer(size, run.device)
    there.copy_(host)
    return round(4 * size / run.seconds(lambda: [there.copy_(host, non_blocking=True) for _ in range(4)]) / 1e9, 2)


def _read_rate(run: Run, projections: Projections) -> float:
    """GB/s of the reader from the page cache into host memory."""
    stored = [t for n, t in projections.index.tensors.items() if n.endswith("adaln_proj.linear.weight")][:2]
    with TensorReader(projections.index, [[t.name] for t in stored], pinned=run.is_cuda) as reader:
        cpu = torch.device("cpu")
        reader.read(0, cpu)
        return round(stored[-1].num_bytes / run.seconds(lambda: reader.read(len(stored) - 1, cpu)) / 1e9, 2)


def write_projections(denoiser: Denoiser, file: Path) -> None:
    """The modulation network as a checkpoint in the original layout."""
    names = {e.target: e.sources[0] for e in key_map(denoiser.config, "original").entries}
    state = {n: v for n, v in denoiser.state_dict().items() if n.startswith("modulation.")}
    kinds = {torch.bfloat16: "BF16", torch.float32: "F32"}
    header, at = {}, 0
    for name, value in state.items():
        span = [at, at + value.nbytes]
        header[names[name]] = {"dtype": kinds[value.dtype], "shape": list(value.shape), "data_offsets": span}
        at += value.nbytes
    head = json.dumps(header).encode()
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, len(head).to_bytes(8, "little") + head, 0)

    def write(name: str) -> None:
        data = state[name].cpu().view(torch.uint8).flatten().numpy().data
        start = 8 + len(head) + header[names[name]]["data_offsets"][0]
        for done in range(0, len(data), 2**26):
            os.pwrite(handle, data[done : done + 2**26], start + done)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, state))
    os.close(handle)
