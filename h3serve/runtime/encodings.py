"""Encoded prompts and references by content, so that what was encoded before wakes no network.

Values are small beside the networks that made them: 10 KiB a token, 5 MiB for a reference clip of 5 s.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

log = logging.getLogger(__name__)

LIMIT_BYTES = 512 * 2**20
DISK_BYTES = 4 * 2**30
Tensors = dict[str, torch.Tensor]
Content = torch.Tensor | NDArray | str | None


def digest_of(kind: str, *contents: Content) -> str:
    """A name for what is to be encoded: values, shapes and dtypes, none left out."""
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for content in contents:
        if content is None or isinstance(content, str):
            digest.update(repr(content).encode())
            continue
        array = content.cpu().numpy() if isinstance(content, torch.Tensor) else content
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class EncodingCache:
    """Host tensors by name, the least recently used ones dropped; on disk too if a folder is given."""

    def __init__(
        self,
        limit_bytes: int = LIMIT_BYTES,
        *,
        folder: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        """`folder` must be of one checkpoint: names say what was encoded, not by which weights.

        `agree` tells whether all ranks hold what this one holds: they encode together or not at all.
        """
        self._agree = agree
        self._limit, self._folder, self._disk_limit = limit_bytes, folder, disk_bytes
        self._held: OrderedDict[str, Tensors] = OrderedDict()
        self.num_bytes = 0
        self.hits = self.misses = self.evictions = 0

    def get(self, name: str, make: Callable[[], Mapping[str, torch.Tensor]]) -> Tensors:
        """The tensors of that name on the host, made if they are not held. They are shared: do not write."""
        held = self._held.get(name)
        if held is None and (held := self._read(name)) is not None:
            self._hold(name, held)
        if self._agree(held is not None) and held is not None:
            self.hits += 1
            if name in self._held:
                self._held.move_to_end(name)
            return held
        self.misses += 1
        fresh = make()
        with torch.inference_mode(False):  # whoever uses them later may be outside of it
            made = {key: value.detach().to("cpu", copy=True) for key, value in fresh.items()}
        self._hold(name, made)
        self._write(name, made)
        return made

    def clear(self) -> None:
        """Hold nothing, on disk neither: the weights have changed."""
        self._held.clear()
        self.num_bytes = 0
        for path in self._files():
            path.unlink(missing_ok=True)

    def _hold(self, name: str, tensors: Tensors) -> None:
        size = _bytes(tensors)
        if size > self._limit:
            return
        self.num_bytes += size - _bytes(self._held.pop(name, {}))
        self._held[name] = tensors
        while self.num_bytes > self._limit:
            _, dropped = self._held.popitem(last=False)
            self.num_bytes -= _bytes(dropped)
            self.evictions += 1

    def _read(self, name: str) -> Tensors | None:
        path = self._folder / f"{name}.safetensors" if self._folder else None
        if path is None or not path.is_file():
            return None
        try:
            tensors: Tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            log.warning("%s cannot be read and is deleted: %s", path, error)
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return tensors

    def _write(self, name: str, tensors: Tensors) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".encoding-", dir=self._folder)
            os.close(handle)
            try:
                save_file({key: value.contiguous() for key, value in tensors.items()}, temporary)
                Path(temporary).replace(self._folder / f"{name}.safetensors")
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._trim()
        except (OSError, SafetensorError) as error:  # a full disk costs time, not the request
            log.warning("an encoding could not be kept on disk: %s", error)

    def _trim(self) -> None:
        files = sorted(self._files(), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total > self._disk_limit:
                total -= path.stat().st_size
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return list(self._folder.glob("*.safetensors")) if self._folder and self._folder.is_dir() else []


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
