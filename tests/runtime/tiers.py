"""The AdaLN tiers over a tiny checkpoint."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from h3serve.models.key_map import Layout
from h3serve.models.module_tensors import empty
from h3serve.models.transformer import denoiser
from h3serve.models.transformer.modulation import ModulationNetwork
from h3serve.runtime.adaln.adaln_cache import AdaLN
from h3serve.runtime.adaln.device_slab import Slab
from h3serve.runtime.adaln.host_pages import PageCache
from h3serve.runtime.adaln.modulation_tables import Scheduled, TableShape
from h3serve.runtime.adaln.rebuild import Projections, projections_of
from h3serve.runtime.adaln.sidecar import Origin, SidecarFolder
from h3serve.runtime.checkpoint_identity import Identities
from tests.models.tiny_transformer import TINY
from tests.runtime.stores import tiny_index

CPU = torch.device("cpu")
SHAPE = TableShape.of(TINY)


def schedule(steps: int, shift: float = 12.0, levels: tuple[float, ...] = ()) -> list[np.ndarray]:
    """Distinct timesteps per step of a request whose conditions are at `levels`."""

    def times(shift: float) -> np.ndarray:
        base = np.linspace(1, 0, steps + 1, dtype=np.float32)[:-1]
        return 1 - shift * base / (1 + (shift - 1) * base)

    return [
        np.unique(np.array([v, a, *(max(v, level) for level in levels)], np.float32))
        for v, a in zip(times(shift), times(3.0), strict=True)
    ]


def without_projections(made: denoiser.Denoiser) -> ModulationNetwork:
    """The modulation network as a loader leaves it that skips the projections."""
    network = denoiser.Denoiser(TINY).requires_grad_(False).modulation
    network.load_state_dict(made.modulation.state_dict())
    denoiser.to_compute_dtype(made, made.transformer.compute_dtype)
    for name, value in made.modulation.named_parameters():
        network.get_parameter(name).data = value.clone()
    for projection in projections_of(network):
        empty(projection)
    return network


def tiers(
    folder: Path,
    made: denoiser.Denoiser,
    *,
    slots: int = 40,
    limit: int = 200,
    pages: int = 200,
    sidecars: Path | None = None,
    layout: Layout = "original",
    writes: bool = True,
) -> AdaLN:
    dtype = made.transformer.compute_dtype
    projections = Projections(tiny_index(folder), denoiser.key_map(TINY, layout), dtype)
    origin = Origin("fl2va", Identities(None).of(projections.index, projections.sources), "test", SHAPE, dtype)
    return AdaLN(
        without_projections(made),
        projections,
        slab=Slab(SHAPE, slots, limit=limit, device=CPU, dtype=dtype),
        pages=PageCache(SHAPE, pages, device=CPU, dtype=dtype),
        sidecars=SidecarFolder(sidecars, origin, limit_bytes=10**9) if sidecars else None,
        writes=writes,
    )


def check(ready: Scheduled, steps: list[np.ndarray], network: ModulationNetwork) -> None:
    """Every step's tables are, to the bit, those of the resident network for that step alone."""
    for timesteps, slots in zip(steps, ready.slots, strict=True):
        expected = network(torch.from_numpy(timesteps))
        rows = (3 * torch.from_numpy(slots)[:, None] + torch.arange(3)).flatten()
        assert torch.equal(ready.modulation.blocks[:, rows], expected.blocks)
        assert torch.equal(ready.modulation.final[slots], expected.final)


def raising(message: str) -> Callable[..., int]:
    def fail(*args: object, **kwargs: object) -> int:
        raise AssertionError(message)

    return fail
