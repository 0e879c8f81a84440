"""A network as a `with` block: inside, its weights are on the device; how they got there is its placement.

resident   they always are
offload    all of them come when the block begins and go when it ends
stream     like offload, but the long list of blocks comes block by block while the network runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch import nn

from h3serve.models.key_map import Entry
from h3serve.models.module_tensors import empty, set_tensors
from h3serve.runtime.offload.block_streaming import Prefetcher, Streamed
from h3serve.runtime.offload.weight_store import FileStore, HostStore, Store
from h3serve.weights.files import memory_buffers
from h3serve.weights.files.memory_buffers import Flat
from h3serve.weights.files.tensor_index import TensorIndex

Mode = Literal["resident", "offload", "stream"]
M = TypeVar("M", bound=nn.Module)
V = TypeVar("V")
M_co = TypeVar("M_co", bound=nn.Module, covariant=True)

# Where each network keeps the long list of equal blocks that most of its weights are in.
BLOCKS = {
    "transformer": "transformer.blocks",
    "text_encoder": "model.language_model.layers",
    "video_vae": "decoder.transformer_blocks",
}


class Placement(Protocol[M_co]):
    """A network that is on its device inside the `with` block."""

    @property
    def module(self) -> M_co:
        """The network; its weights may be elsewhere at the moment."""

    def __enter__(self) -> M_co: ...
    def __exit__(self, *error: object) -> None: ...


@dataclass(frozen=True)
class Resident(Generic[M]):
    """A network whose weights are always on its device."""

    module: M

    def __enter__(self) -> M:
        return self.module

    def __exit__(self, *error: object) -> None:
        pass


@dataclass(frozen=True)
class Streaming:
    """How blocks are streamed: how many are prefetched, how many are resident while the `with` block lasts."""

    depth: int = 1
    resident_blocks: int = 0
    cyclic: bool = False  # the network runs many times: behind the last block comes the first


class OffloadedNetwork(Generic[M]):
    """A network whose weights come from the host for the `with` block; group 0 is all but the blocks."""

    def __init__(
        self, module: M, store: Store, blocks: Sequence[nn.Module], *, device: torch.device, stream: Streaming | None
    ) -> None:
        self.module, self.store = module, store
        self._blocks, self._device, self._stream = blocks, device, stream
        self._prefetcher: Prefetcher | None = None
        self._streamed: Streamed | None = None

    def __enter__(self) -> M:
        assert self._prefetcher is None, "the network is already on the device"
        prefetcher = self._prefetcher = Prefetcher(self.store, self._device)
        try:
            self._bring(prefetcher, 0, self.module)
            if self._stream is None:
                for number, block in enumerate(self._blocks):
                    self._bring(prefetcher, 1 + number, block)
            else:
                how = self._stream
                self._streamed = Streamed(
                    self._blocks,
                    prefetcher,
                    first_group=1,
                    depth=how.depth,
                    resident=how.resident_blocks,
                    cyclic=how.cyclic,
                )
                self._streamed.__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self.module

    def __exit__(self, *error: object) -> None:
        if self._streamed is not None:
            self._streamed.__exit__(*error)
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._streamed = self._prefetcher = None
        empty(self.module)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the next network's buffers have other sizes

    def make_resident(self) -> Resident[M]:
        """Brings the network to the device for good; nothing of it is left on the host."""
        self.__enter__()
        assert self._prefetcher is not None and self._streamed is None, "a streamed network is not resident"
        self._prefetcher.close()
        self.store.close()
        return Resident(self.module)

    def into_memory(self) -> OffloadedNetwork[M]:
        """The host side goes from files into memory of this process, pinned where there is a GPU."""
        files = self.store
        self.store = HostStore(files.flats, files.send, pinned=self._device.type == "cuda")
        files.close()
        return self

    def set_resident_blocks(self, count: int) -> None:
        """Keeps `count` of the streamed blocks on the device for the whole `with` block, from the next one on."""
        assert self._stream is not None, "nothing is streamed"
        self._stream = replace(self._stream, resident_blocks=count)

    @property
    def waited_s(self) -> float:
        """Host seconds that the current `with` block has spent waiting for streamed blocks."""
        return self._streamed.waited_s if self._streamed is not None else 0.0

    def _bring(self, prefetcher: Prefetcher, group: int, owner: nn.Module) -> None:
        flat = self.store.flats[group]
        target = memory_buffers.device_buffer(flat.num_bytes, self._device)
        prefetcher.receive(prefetcher.bring(group, target))
        set_tensors(owner, flat.views(target))


def from_host(module: M, name: str, *, device: torch.device, stream: Streaming | None) -> OffloadedNetwork[M]:
    """A network loaded on the host, its weights moved group by group into memory that copies quickly.

    Host memory beyond the weights is one group at a time. Weights that are on meta stay there.
    """
    blocks = blocks_of(module, name)
    owners: list[nn.Module] = [module, *blocks]
    groups = split({key: value for key, value in module.state_dict().items() if not value.is_meta}, name, len(blocks))
    flats = [Flat.of({n: (tuple(t.shape), t.dtype) for n, t in group.items()}) for group in groups]

    def fill(number: int, buffer: torch.Tensor) -> None:
        views = flats[number].views(buffer)
        for key in list(groups[number]):
            value = groups[number].pop(key)
            views[key].copy_(value)
            set_tensors(owners[number], {key: torch.empty_like(value, device="meta")})

    store = HostStore(flats, fill, pinned=device.type == "cuda")
    move_tables(module, device)
    return OffloadedNetwork(module, store, blocks, device=device, stream=stream)


def from_files(
    module: M,
    name: str,
    index: TensorIndex,
    entries: Sequence[Entry],
    *,
    dtype_of: Callable[[str], torch.dtype],
    device: torch.device,
    stream: Streaming | None,
) -> OffloadedNetwork[M]:
    """A network on meta whose weights are left in their files: `entries` of an opened component's key map."""
    blocks = blocks_of(module, name)
    shapes = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    for entry in entries:  # dtypes are asked for before the weights come
        dtype = dtype_of(entry.target)
        set_tensors(module, {entry.target: torch.empty(shapes[entry.target], dtype=dtype, device="meta")})
    store = FileStore(
        index,
        split({entry.target: entry for entry in entries}, name, len(blocks)),
        shape_of=lambda entry: shapes[entry.target],
        dtype_of=lambda entry: dtype_of(entry.target),
        device=device,
    )
    move_tables(module, device)
    return OffloadedNetwork(module, store, blocks, device=device, stream=stream)


def held_by(placement: Placement[nn.Module], name: str) -> dict[str, torch.Tensor]:
    """A network's weights by name where they are held, on the device or in memory of this process."""
    store = placement.store if isinstance(placement, OffloadedNetwork) else None
    if not isinstance(store, HostStore):
        return {key: value for key, value in placement.module.state_dict().items() if not value.is_meta}
    held = dict(store.tensors(0))
    for number in range(1, len(store.flats)):
        held |= {f"{BLOCKS[name]}.{number - 1}.{key}": value for key, value in store.tensors(number).items()}
    return held


def blocks_of(module: nn.Module, name: str) -> Sequence[nn.Module]:
    """The network's list of blocks; none for a network that has no such list."""
    return list(module.get_submodule(BLOCKS[name]).children()) if name in BLOCKS else []


def split(values: Mapping[str, V], name: str, blocks: int) -> list[dict[str, V]]:
    """What belongs to all but the blocks, then to each block, there under the names inside it."""
    prefix = f"{BLOCKS.get(name, '')}."
    groups: list[dict[str, V]] = [{} for _ in range(1 + blocks)]
    for key, value in values.items():
        if blocks and key.startswith(prefix):
            number, _, inner = key.removeprefix(prefix).partition(".")
            groups[1 + int(number)][inner] = value
        else:
            groups[0][key] = value
    return groups


def move_tables(module: nn.Module, device: torch.device) -> None:
    """Small tensors that no file holds go to the device for good."""
    held = set(module.state_dict())
    for name, buffer in list(module.named_buffers()):
        if name not in held:
            set_tensors(module, {name: buffer.to(device)})
