"""Stored bytes into given host memory, with several reads under way at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.files.tensor_index import TensorInfo

PIECE = 16 * 2**20  # bytes of one read
READERS = 8


class RawReader:
    """Reads tensors as they are stored. One thread copies from the page cache slower than a PCIe link takes."""

    def __init__(self, readers: int = READERS) -> None:
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="h3-read")
        self._files: dict[Path, tuple[int, int]] = {}  # file -> (descriptor, where its data part begins)

    def read(self, wanted: Iterable[tuple[TensorInfo, torch.Tensor]]) -> int:
        """Fill every (stored tensor, uint8 [num_bytes] on the host); returns the bytes read.

        CheckpointError for a file that cannot be read, or has become shorter than its header.
        """
        pieces = [
            (stored, target, at, min(PIECE, stored.num_bytes - at))
            for stored, target in wanted
            for at in range(0, stored.num_bytes, PIECE)
        ]
        for file in {stored.file for stored, *_ in pieces}:
            self._open(file)
        return sum(self._pool.map(lambda piece: self._read_piece(*piece), pieces))

    def close(self) -> None:
        """Gives threads and files back."""
        self._pool.shutdown()
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files.clear()

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
