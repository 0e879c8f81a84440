"""A training batch: the rows of many samples in one sequence of a fixed length, made from what buckets hold.

A bucket's samples have one form, so that all index arithmetic is over whole groups. It runs in processes ahead of
the device; only what changes from batch to batch is sent there.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from demo.train.ahead import made_ahead
from demo.train.batch_plan import Bucket, Group, Ints, Plan
from demo.train.forms import Form
from demo.train.padding import capacity_of, pad
from h3serve.pipeline.packing import AUDIO_CONDITION, FOLLOWS_AUDIO, FOLLOWS_VIDEO, VISUAL_CONDITION

GROUP = 6  # samples of one bucket that go into a batch together


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
