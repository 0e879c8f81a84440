"""Encoded prompts and references by content, so that what was encoded before runs no network.

Values are small beside the networks that made them: 10 KiB a token, 5 MiB for a reference video of 5 s.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h3serve.runtime.checkpoint_identity import Identities
from h3serve.system.disk_files import trim, whole_file
from h3serve.weights.files.tensor_index import TensorIndex

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


def folder_for(base: Path, weights: Iterable[TensorIndex], identities: Identities, *made: object) -> Path:
    """Where below `base` the encodings by these weights are, `made` by this device, library, dtype, ...

    Every byte of the weights counts, those that no network uses as well.
    """
    digest = hashlib.blake2b(repr(made).encode(), digest_size=8)
    for index in weights:
        digest.update(identities.of(index, index.tensors).encode())
    return base / digest.hexdigest()


class EncodingCache:
    """Host tensors by name, the least recently used ones dropped; on disk too if a folder is given."""

    def __init__(
        self,
        limit_bytes: int = LIMIT_BYTES,
        *,
        folder: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        writes: bool = True,
        all_have: Callable[[bool], bool] = bool,
    ) -> None:
        """`folder` must be of one checkpoint (`folder_for`): names say what was encoded, not by which weights.

        `writes`: this process writes files, others of its replica read them.
        `all_have` tells whether all ranks hold what this one holds: they encode together or not at all.
        """
        self._all_have = all_have
        self._limit, self._folder, self._disk_limit, self._writes = limit_bytes, folder, disk_bytes, writes
        self._held: OrderedDict[str, Tensors] = OrderedDict()
        self.num_bytes = 0
        self.hits = self.misses = self.evictions = self.disk_hits = 0  # a hit on disk is a hit

    def get(self, name: str, make: Callable[[], Mapping[str, torch.Tensor]]) -> Tensors:
        """The tensors of that name on the host, made if they are not held. They are shared: do not write."""
        held = self._held.get(name)
        from_disk = held is None and (held := self._read(name)) is not None
        if from_disk and held is not None:
            self._hold(name, held)
        if self._all_have(held is not None) and held is not None:
            self.hits += 1
            self.disk_hits += from_disk
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
        """Drops everything, on disk too, after the weights have changed."""
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
            with safe_open(path, "pt") as file:
                tensors: Tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                if (file.metadata() or {}).get("checksum") != _checksum(tensors):
                    raise SafetensorError("its checksum is wrong")
            os.utime(path)
        except (OSError, SafetensorError) as error:
            log.warning("%s cannot be used and is deleted: %s", path, error)
            if self._writes:
                path.unlink(missing_ok=True)
            return None
        return tensors

    def _write(self, name: str, tensors: Tensors) -> None:
        if self._folder is None or not self._writes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            whole = {key: value.contiguous() for key, value in tensors.items()}
            # Private: what was asked for is nobody else's affair.
            with whole_file(self._folder / f"{name}.safetensors", mode=0o600, sync=False) as part:
                save_file(whole, part, {"checksum": _checksum(whole)})
            trim(self._files(), self._disk_limit)
        except (OSError, SafetensorError) as error:  # a full disk costs time, not the request
            log.warning("an encoding could not be kept on disk: %s", error)

    def _files(self) -> list[Path]:
        return list(self._folder.glob("*.safetensors")) if self._folder and self._folder.is_dir() else []


def _checksum(tensors: Tensors) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
