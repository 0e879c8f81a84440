"""Which weights modulation tables were made from, and by which machinery."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable

import torch

from h3serve.weights.index import TensorIndex, TensorInfo
from h3serve.weights.rawread import RawReader

SAMPLES = 16  # pieces of a large tensor that are looked at
SAMPLE_BYTES = 4096


def identity_of(index: TensorIndex, names: Iterable[str]) -> str:
    """A digest of these stored tensors: names, dtypes, shapes, and bytes from all over each.

    Pieces are enough to tell checkpoints apart: training moves every value. Reading 24 GiB for a
    full digest would cost as much as making the tables anew.
    """
    reader, digest = RawReader(1), hashlib.sha256()
    try:
        for name in sorted(names):
            stored = index.tensors[name]
            digest.update(f"{name} {stored.dtype} {stored.shape}\n".encode())
            for piece in _pieces(stored):
                memory = torch.empty(piece.num_bytes, dtype=torch.uint8)
                reader.read([(piece, memory)])
                digest.update(memory.numpy().tobytes())
    finally:
        reader.close()
    return digest.hexdigest()[:32]


def maker_of(device: torch.device) -> str:
    """Device and library: another GEMM kernel rounds differently, so tables are made once per maker."""
    if device.type != "cuda":
        return f"{device.type} {platform.machine()}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"


def _pieces(stored: TensorInfo) -> list[TensorInfo]:
    if stored.num_bytes <= SAMPLES * SAMPLE_BYTES:
        return [stored]
    last = stored.num_bytes - SAMPLE_BYTES
    starts = [last * i // (SAMPLES - 1) for i in range(SAMPLES)]
    return [
        TensorInfo(stored.name, stored.file, torch.uint8, (SAMPLE_BYTES,), stored.start + at, SAMPLE_BYTES)
        for at in starts
    ]
