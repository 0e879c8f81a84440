"""Stored tensors from their files to a device: the only place that reads the bytes of weights.

Bytes go from the page cache into a host buffer, with several reads under way at once, and from there in one copy to
the device. The reader knows neither what a tensor means nor how it will be held: `weights/formats/` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType

import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.files import memory_buffers
from h3serve.weights.files.memory_buffers import Flat
from h3serve.weights.files.tensor_index import TensorIndex, TensorInfo

PIECE = 16 * 2**20  # bytes of one read
READERS = 8
STAGES = 2  # pinned buffers: one is read into while the other one is copied from

Tensors = dict[str, torch.Tensor]
Ranges = Sequence[tuple[int, int]]  # (first row, how many) along the first axis


class TensorReader:
    """Reads batches of stored tensors; its buffers are as large as the largest batch.

    One thread copies from the page cache slower than a PCIe link takes: a batch is read by several.
    """

    def __init__(
        self,
        index: TensorIndex,
        batches: Iterable[Sequence[str]],
        *,
        rows: Mapping[str, Ranges] = MappingProxyType({}),
        pinned: bool = False,
        readers: int = READERS,
    ) -> None:
        """`batches[i]` names the stored tensors that `read(i)` gives; `pinned` if they will go to a GPU.

        Of a tensor in `rows` only those rows are read; what its other rows hold means nothing.
        """
        self._index, self._rows, self._pinned = index, rows, pinned
        self._batches = [_layout(index, names) for names in batches]
        self._largest = max((batch.num_bytes for batch in self._batches), default=0)
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="h3-read")
        self._files: dict[Path, tuple[int, int]] = {}  # file -> (descriptor, where its data part begins)
        self._stages: list[torch.Tensor | None] = [None] * STAGES
        self._copied: list[torch.cuda.Event | None] = [None] * STAGES
        self._turn = 0
        self._landing: torch.Tensor | None = None  # stored bytes on the device
        self.bytes_read = 0
        self.on_read: Callable[[int], None] | None = None  # told of all bytes read so far, after each batch

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @torch.no_grad()
    def read(self, number: int, device: torch.device) -> Tensors:
        """The tensors of a batch, by their stored names and in their stored dtypes, on `device`.

        They are views of a buffer that the next `read` writes into; on a GPU that write is queued on the current
        stream, like the copy that fills them. Blocks while the bytes are read from the files.

        CheckpointError for a file that cannot be read, or has become shorter than its header.
        """
        batch = self._batches[number]
        host = self._stage()[: batch.num_bytes]
        views = batch.views(host)
        self._read_files(views)
        if self.on_read is not None:
            self.on_read(self.bytes_read)
        if device.type != "cuda":
            return views
        if self._landing is None:
            self._landing = memory_buffers.device_buffer(self._largest, device)
        landing = self._landing[: batch.num_bytes]
        landing.copy_(host, non_blocking=True)
        self._copied[self._turn] = memory_buffers.record(device)
        self._turn = (self._turn + 1) % STAGES
        return batch.views(landing)

    def close(self) -> None:
        """Gives threads, files and buffers back; copies under way are finished first."""
        for event in self._copied:
            memory_buffers.settle(event)
        self._pool.shutdown()
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._stages, self._landing = [None] * STAGES, None

    def _stage(self) -> torch.Tensor:
        """The host buffer whose turn it is, once the copy out of it is done. On a CPU it is always the first one."""
        memory_buffers.settle(self._copied[self._turn])
        stage = self._stages[self._turn]
        if stage is None:
            stage = self._stages[self._turn] = memory_buffers.host_buffer(self._largest, pinned=self._pinned)
        return stage

    def _read_files(self, views: Tensors) -> None:
        pieces = [
            (stored, view.reshape(-1).view(torch.uint8), at, count)
            for stored, view in ((self._index.tensors[name], view) for name, view in views.items())
            for at, count in self._pieces(stored)
        ]
        for file in {stored.file for stored, *_ in pieces}:
            self._open(file)
        self.bytes_read += sum(self._pool.map(lambda piece: self._read_piece(*piece), pieces))

    def _pieces(self, stored: TensorInfo) -> Iterator[tuple[int, int]]:
        """(first byte, how many) of each read that a tensor takes."""
        rows = max(1, stored.shape[0]) if stored.shape else 1
        width = stored.num_bytes // rows
        for first, count in self._rows.get(stored.name, [(0, rows)]):
            begin, end = first * width, (first + count) * width
            yield from ((at, min(PIECE, end - at)) for at in range(begin, end, PIECE))

    def _open(self, file: Path) -> None:
        if file in self._files:
            return
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
        header = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        self._files[file] = (descriptor, 8 + header)

    def _read_piece(self, stored: TensorInfo, target: torch.Tensor, at: int, count: int) -> int:
        descriptor, data = self._files[stored.file]
        memory = target.numpy().data[at : at + count]
        done = 0
        while done < count:
            try:
                got = os.preadv(descriptor, [memory[done:]], data + stored.start + at + done)
            except OSError as error:
                raise CheckpointError(f"{stored.file} cannot be read: {error.strerror}") from None
            if got == 0:
                raise CheckpointError(f"{stored.file} ends inside {stored.name}: it was cut off while in use")
            done += got
        return count


def _layout(index: TensorIndex, names: Sequence[str]) -> Flat:
    stored = [index.tensors[name] for name in names]
    return Flat.of({tensor.name: (tensor.shape, tensor.dtype) for tensor in stored})
