"""How an engine runs: one frozen value per concern, defaults in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h3serve.core.tasks import Partition, Quality

Residency = Literal["auto", "resident", "offload", "stream"]
DType = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class EngineSettings:
    """Which checkpoint, which partition, on which device, at which tier."""

    model: str  # a folder, a hub id, or "demo"
    partition: Partition | Literal["both"] = "fl2va"  # both: two transformers, the rest shared
    device: str = "cuda"  # cpu, cuda, cuda:N, or auto: a GPU if there is one
    dtype: DType = "auto"  # auto: float32 on cpu, the release's bfloat16 on cuda
    quality: Quality = "lossless"
    residency: Residency = "auto"
    cache: str | None = None  # folder for what is made once and kept; ~/.cache/h3serve if left out
    revision: str | None = None
    gpus: int = 1  # ranks that make one clip together
    ulysses: int | None = None  # of them, so many share the sequence (None: follows from tp, or is chosen)
    tp: int | None = None  # and so many share every linear
