"""Which weights something was made from: a digest of every byte, read once a file and kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.core.model_name import DEMOS, is_hub_id
from h3serve.weights.files.tensor_index import TensorIndex, TensorInfo
from h3serve.weights.files.tensor_reader import READERS

log = logging.getLogger(__name__)

VERSION = "every byte, 1"  # what was made from samples of the bytes has another identity
PIECE = 8 * 2**20
SAMPLED = 256  # bytes of a tensor
SETTLED_S = 2.0  # a file changed so lately might change again without its times showing it
Digests = dict[str, str]  # of stored tensors, by name


class Identities:
    """Identities of sets of tensors; what was read of a file is kept in `folder` until the file changes.

    A file is known by its path, size, inode and times. Processes that ask at once wait for the first one's reading.
    """

    def __init__(self, folder: Path | None) -> None:
        """Without `folder`, or where it cannot be written, every byte is read each time."""
        self._folder = folder

    def of(self, index: TensorIndex, names: Iterable[str]) -> str:
        """A digest of these stored tensors: names, dtypes, shapes and all bytes. CheckpointError if one is cut off."""
        by_file: dict[Path, list[TensorInfo]] = defaultdict(list)
        for name in sorted(names):
            by_file[index.tensors[name].file].append(index.tensors[name])
        digests: Digests = {}
        for file, tensors in by_file.items():
            digests |= self._digests(file, tensors)
        whole = hashlib.sha256(VERSION.encode())
        for name in sorted(digests):
            stored = index.tensors[name]
            whole.update(f"\n{name} {stored.dtype} {stored.shape} {digests[name]}".encode())
        return whole.hexdigest()[:32]

    def _digests(self, file: Path, tensors: Sequence[TensorInfo]) -> Digests:
        if self._folder is not None:
            record = self._folder / f"{hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:32]}.json"
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with record.open("a+") as stream:
                    fcntl.flock(stream, fcntl.LOCK_EX)
                    return _kept(stream, file, tensors)
            except OSError as error:
                log.warning("%s cannot be kept (%s): the weights are read again at the next start", record, error)
        return _read(file, tensors)


def identities_in(cache: Path) -> Identities:
    """Those that are kept in the folder for what is made once and kept."""
    return Identities(cache / "identities")


def describe_checkpoint(partition: Partition, index: TensorIndex, model: str | None = None) -> dict[str, Any]:
    """What a video may say of its transformer: `model` where its name is public, and a digest that is quickly made.

    The digest is of names, dtypes and shapes and of the first 256 bytes of every tensor: enough to tell fine-tuned
    weights apart, and no proof of all bytes.
    """
    public = model is not None and (model in DEMOS or (is_hub_id(model) and not Path(model).exists()))
    digest = hashlib.sha256(b"names, shapes and 256 bytes, 1")
    by_file: dict[Path, list[TensorInfo]] = defaultdict(list)
    for name in sorted(index.tensors):
        by_file[index.tensors[name].file].append(index.tensors[name])
    for file in sorted(by_file, key=lambda file: file.name):
        with file.open("rb") as stream:
            data = 8 + int.from_bytes(stream.read(8), "little")
            for tensor in by_file[file]:
                digest.update(f"\n{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
                digest.update(os.pread(stream.fileno(), min(SAMPLED, tensor.num_bytes), data + tensor.start))
    return {"model": model if public else None, "partition": partition, "sample": digest.hexdigest()[:32]}


def maker_of(device: torch.device) -> str:
    """Device and library: another GEMM kernel rounds differently, so tables are made once per maker."""
    if device.type != "cuda":
        return f"{device.type} {platform.machine()}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"


def _kept(stream: IO[str], file: Path, tensors: Sequence[TensorInfo]) -> Digests:
    """Digests from a record, and what it lacks from the file; a record that is torn or of another state counts not."""
    state = _state(file)
    stream.seek(0)
    known = _parse(stream.read(), state)
    if missing := [tensor for tensor in tensors if _place(tensor) not in known]:
        known |= {_place(tensor): digest for tensor, digest in zip(missing, _read(file, missing).values(), strict=True)}
        if _state(file) == state and time.time() - state["ctime_ns"] / 1e9 > SETTLED_S:
            stream.seek(0)
            stream.truncate()
            json.dump({"version": VERSION, "file": state, "tensors": known}, stream)
    return {tensor.name: known[_place(tensor)] for tensor in tensors}


def _state(file: Path) -> dict[str, Any]:
    seen = file.stat()
    return {
        "path": str(file.resolve()),
        "size": seen.st_size,
        "inode": seen.st_ino,
        "mtime_ns": seen.st_mtime_ns,
        "ctime_ns": seen.st_ctime_ns,  # an edit may set the other one back
    }


def _parse(text: str, state: Mapping[str, Any]) -> Digests:
    try:
        record = json.loads(text)
        if record["version"] == VERSION and record["file"] == state:
            return {str(place): str(digest) for place, digest in record["tensors"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return {}


def _place(tensor: TensorInfo) -> str:
    return f"{tensor.start}+{tensor.num_bytes} {tensor.name}"


def _read(file: Path, tensors: Sequence[TensorInfo]) -> Digests:
    """Several tensors at once: one thread digests slower than a disk reads."""
    began = time.perf_counter()
    try:
        with file.open("rb") as stream, ThreadPoolExecutor(READERS, thread_name_prefix="h3-identity") as pool:
            data = 8 + int.from_bytes(stream.read(8), "little")
            digests = list(pool.map(lambda tensor: _digest(stream.fileno(), data, tensor), tensors))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    size, seconds = sum(tensor.num_bytes for tensor in tensors) / 2**30, time.perf_counter() - began
    log.info("%s: %.2f GiB read for its identity in %.1f s", file.name, size, seconds)
    return dict(zip((tensor.name for tensor in tensors), digests, strict=True))


def _digest(descriptor: int, data: int, tensor: TensorInfo) -> str:
    digest, done = hashlib.sha256(), 0
    while done < tensor.num_bytes:
        piece = os.pread(descriptor, min(PIECE, tensor.num_bytes - done), data + tensor.start + done)
        if not piece:
            raise CheckpointError(f"{tensor.file} ends inside {tensor.name}: it was cut off while in use")
        digest.update(piece)
        done += len(piece)
    return digest.hexdigest()
