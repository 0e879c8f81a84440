"""A training batch: the rows of many samples in one sequence of a fixed length, made from what buckets hold.

A bucket's samples have one form, so that all index arithmetic is over whole groups. It runs in processes ahead of
the device; only what changes from batch to batch is sent there.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.train.ahead import made_ahead
from demo.train.forms import Form
from demo.train.padding import capacity_of, pad
from h3serve.pipeline.packing import AUDIO_CONDITION, FOLLOWS_AUDIO, FOLLOWS_VIDEO, VISUAL_CONDITION

Ints = NDArray[np.int64]
GROUP = 6  # samples of one bucket that go into a batch together


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


class Choice:
    """Which samples go into a batch: kinds by their shares of samples, buckets of a kind by their size."""

    def __init__(self, buckets: Sequence[Bucket], shares: Mapping[str, float]) -> None:
        self.buckets = buckets
        self.numbers = {k: [i for i, b in enumerate(buckets) if b.kind == k and len(b)] for k in shares}
        self.kinds = [kind for kind in shares if self.numbers[kind]]
        self.chances = _normalized([shares[kind] for kind in self.kinds])
        self.sizes = {kind: _normalized([len(buckets[i]) for i in self.numbers[kind]]) for kind in self.kinds}

    def groups(self, room: NDArray[np.int64], rng: np.random.Generator) -> list[Group]:
        """Groups that fill about as much as there is room for: rows, and what else `needs_of` counts."""
        groups, left = list[Group](), room
        while True:
            kind = self.kinds[rng.choice(len(self.kinds), p=self.chances)]
            number = self.numbers[kind][rng.choice(len(self.sizes[kind]), p=self.sizes[kind])]
            bucket = self.buckets[number]
            samples = rng.integers(len(bucket), size=GROUP)
            prompts = [bucket.prompts[s][rng.integers(len(bucket.prompts[s]))] for s in samples]
            needed = np.cumsum([needs_of(bucket.form, p) for p in prompts], axis=0)
            count = int((needed <= left).all(axis=1).sum())
            if count:
                groups.append(Group(number, samples[:count], tuple(prompts[:count])))
                left = left - needed[count - 1]
            if count < GROUP:
                return groups


def needs_of(form: Form, prompt: Ints) -> Ints:
    """What a sample takes of a batch: rows, samples, tokens, vision tokens, video rows, audio rows."""
    tokens, layout = len(form.prefix) + len(prompt), form.layout
    seen = len(form.vision_places)
    return np.array([form.rows + tokens, 1, tokens, seen, len(layout.video_index), len(layout.audio_index)], np.int64)


def _normalized(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, np.float64) / sum(values)


def arrange(buckets: Sequence[Bucket], groups: Sequence[Group], rows: int) -> Plan:
    """All indices of the batch; rows that are left over form a segment of their own at the end."""
    parts = [_Part(buckets[g.bucket].form, g.prompts) for g in groups]
    batch = sum(len(g.samples) for g in groups)
    longest = max(int(part.tokens.max()) for part in parts)
    start, first = 0, 0
    columns: dict[str, list[NDArray[np.generic]]] = {}
    for part in parts:
        for name, values in part.columns(start, first, longest, batch).items():
            columns.setdefault(name, []).append(values)
        start, first = start + int(part.lengths.sum()), first + len(part.tokens)
    rest = rows - start
    assert rest >= 0
    row_lengths = [int(n) for part in parts for n in part.lengths] + ([rest] if rest else [])
    text_lengths = [int(n) for part in parts for n in part.tokens]
    joined = {
        name: np.concatenate(values, axis=1 if name == "places" else 0)
        for name, values in columns.items()
        if not name.startswith(("condition_", "target_"))
    }
    for name in ("positions", "tags", "kinds", "sample"):
        end = np.zeros((rest, *joined[name].shape[1:]), joined[name].dtype)
        joined[name] = np.concatenate([joined[name], end])
    for name in ("video", "audio"):
        joined[name] = np.concatenate([*columns[f"condition_{name}"], *columns[f"target_{name}"]])
    joined["picks"] = np.concatenate([g.samples for g in groups])
    joined["row_bounds"], joined["text_bounds"] = _bounds(row_lengths), _bounds(text_lengths)
    floats = {name: joined.pop(name) for name in ("positions", "video_weights", "audio_weights")}
    ints = [values.ravel().astype(np.int32) for values in joined.values()]
    bits = [values.ravel().astype(np.float32).view(np.int32) for values in floats.values()]
    return Plan(
        tuple(groups),
        np.concatenate([*ints, *bits]),
        tuple((name, values.shape) for name, values in joined.items()),
        tuple((name, values.shape) for name, values in floats.items()),
        tuple(row_lengths),
        tuple(text_lengths),
        sum(len(values) for values in columns["condition_video"]),
        sum(len(values) for values in columns["condition_audio"]),
        batch,
        batch,
        (max(row_lengths), max(text_lengths)),
        sum(len(values) for values in columns["seen"]),
    )


class _Part:
    """One group's share of a batch."""

    def __init__(self, form: Form, prompts: Sequence[Ints]) -> None:
        self.form, self.prompts = form, prompts
        self.tokens = np.array([len(form.prefix) + len(p) for p in prompts])
        self.lengths = self.tokens + form.rows

    def columns(self, start: int, first: int, longest: int, batch: int) -> dict[str, NDArray[np.generic]]:
        """Arrays of the group whose first row is `start` and first sample `first`, of `batch` samples in all."""
        form, layout, count = self.form, self.form.layout, len(self.tokens)
        starts = start + np.cumsum(self.lengths) - self.lengths
        ids, places = np.zeros((count, longest), np.int64), np.zeros((3, count, longest), np.int64)
        positions, tags, kinds = [], [], []
        for i, (tokens, prompt) in enumerate(zip(self.tokens, self.prompts, strict=True)):
            ids[i, :tokens] = np.concatenate([form.prefix, prompt])
            places[:, i, :tokens] = form.text_positions(tokens)
            text = np.zeros((tokens, 3))
            text[:, 0] = np.arange(tokens)
            positions += [text, layout.positions + np.array([tokens, 0.0, 0.0])]
            tags += [form.text_tags(tokens), layout.tags]
            kinds += [np.full(tokens, FOLLOWS_VIDEO), layout.kinds]
        within = [np.arange(tokens) for tokens in self.tokens]
        after = (starts + self.tokens)[:, None]  # each sample's first row after its text
        video, audio = layout.video_index, layout.audio_index
        split_video, split_audio = layout.condition_video_rows, layout.condition_audio_rows
        return {
            "ids": ids,
            "places": places,
            "tokens": np.concatenate([(first + i) * longest + w for i, w in enumerate(within)]),
            "seen": ((first + np.arange(count))[:, None] * longest + form.vision_places).ravel(),
            "text": np.concatenate([s + w for s, w in zip(starts, within, strict=True)]),
            "positions": np.concatenate(positions).astype(np.float32),
            "tags": np.concatenate(tags),
            "kinds": np.concatenate(kinds).astype(np.int64),
            "sample": np.repeat(first + np.arange(count), self.lengths),
            "condition_video": (after + video[:split_video]).ravel(),
            "target_video": (after + video[split_video:]).ravel(),
            "condition_audio": (after + audio[:split_audio]).ravel(),
            "target_audio": (after + audio[split_audio:]).ravel(),
            "video_weights": _even(count, len(video) - split_video, batch),
            "audio_weights": _even(count, len(audio) - split_audio, batch),
        }


def _even(count: int, rows: int, batch: int) -> NDArray[np.float32]:
    return np.full(count * rows, 1.0 / (batch * rows), np.float32)


def _bounds(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *lengths]).astype(np.int32)


def timestep_index(kinds: Tensor, sample: Tensor, batch: int) -> Tensor:
    """Each row's entry among [B video times, B audio times, the conditions' visual level, their audio level]."""
    index = torch.where(kinds == FOLLOWS_AUDIO, sample + batch, sample)
    index = torch.where(kinds == VISUAL_CONDITION, 2 * batch, index)
    return torch.where(kinds == AUDIO_CONDITION, 2 * batch + 1, index)


class Loader:
    """Plans of batches one after another; batch n of a rank is always the same.

    With `workers` they are made ahead by so many processes. `padded` batches have all one shape.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        shares: Mapping[str, float],
        rows: int,
        *,
        seed: tuple[int, ...],
        workers: int = 0,
        padded: bool = False,
    ) -> None:
        self.choice, self.seed, self.workers = Choice(buckets, shares), seed, workers
        self.rows, self.capacity = rows, capacity_of(buckets, rows) if padded else None

    def plan(self, number: int) -> Plan:
        rng = np.random.default_rng((*self.seed, number))
        room = self.capacity.room if self.capacity else np.array([self.rows, *[self.rows] * 5], np.int64)
        plan = arrange(self.choice.buckets, self.choice.groups(room, rng), self.rows)
        return pad(plan, self.capacity) if self.capacity else plan

    def plans(self, start: int = 0) -> Generator[Plan, None, None]:
        """From batch `start` on."""
        return made_ahead(self.plan, start, self.workers)
