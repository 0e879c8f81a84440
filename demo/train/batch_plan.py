"""What a batch is made of: buckets of samples, groups out of them, and the plan of one batch as one buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.train.forms import Form

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Bucket:
    """N samples of a form on the device, half precision; what a kind does not have has no rows.

    Target rows video [N, R, 96] and audio [N, R, 32], condition rows likewise, features of what the encoder sees
    [N, n, width] with one more set per early layer; `prompts` holds each sample's wordings as token ids.
    """

    kind: str
    form: Form
    prompts: list[list[Ints]]
    video: Tensor
    audio: Tensor
    condition_video: Tensor
    condition_audio: Tensor
    features: Tensor
    deep: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, eq=False)
class Group:
    """Samples of a bucket, and the wording of each."""

    bucket: int
    samples: Ints
    prompts: tuple[Ints, ...]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Index arrays of a batch of B samples in S rows, on the host or on the device.

    `picks` [B] are the samples' numbers in their buckets. ids [B, L] and places [3, B, L] are padded presentations,
    of which `tokens` picks the real ones out of B*L, and `seen` the vision tokens. `sample` [S] says whose a row is;
    kinds and tags [S] are those of packing. In video and audio condition rows come first. Weights [rows] make each
    sample's mean count alike.
    """

    picks: Tensor
    ids: Tensor
    places: Tensor
    tokens: Tensor
    seen: Tensor
    text: Tensor
    positions: Tensor
    tags: Tensor
    kinds: Tensor
    sample: Tensor
    video: Tensor
    audio: Tensor
    video_weights: Tensor
    audio_weights: Tensor
    row_bounds: Tensor
    text_bounds: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """A batch before it is on the device: all its arrays in one, so that they are sent and sent on at once.

    `buffer` int32 holds the whole numbers of `ints`, (name, shape) each, then the bits of the float32 of `floats`.
    """

    groups: tuple[Group, ...]
    buffer: NDArray[np.int32]
    ints: tuple[tuple[str, tuple[int, ...]], ...]
    floats: tuple[tuple[str, tuple[int, ...]], ...]
    row_lengths: tuple[int, ...]
    text_lengths: tuple[int, ...]
    condition_video_rows: int
    condition_audio_rows: int
    samples: int
    places: int  # for samples: as many, or more in a padded batch
    longest: tuple[int, int]  # no sample has more rows, nor more tokens
    sees: int  # vision tokens
    padded: bool = False

    def sent(self, device: torch.device) -> Tensor:
        """The buffer there, without waiting."""
        held = torch.from_numpy(self.buffer)
        return held.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else held

    def on(self, device: torch.device) -> Arrays:
        """The arrays there."""
        return self.cut(self.sent(device))

    def cut(self, held: Tensor) -> Arrays:
        """The arrays that the buffer, on a device, holds."""
        count = sum(math.prod(shape) for _, shape in self.ints)
        narrow, wide, values = held[:count], held[:count].long(), held[count:].view(torch.float32)
        found = _cut(wide, self.ints) | _cut(values, self.floats)
        bounds = {n: t for n, t in _cut(narrow, self.ints).items() if n.endswith("_bounds")}
        return Arrays(**{**found, **bounds})


def _cut(values: Tensor, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    parts = values.split([math.prod(shape) for _, shape in shapes])
    return {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
