"""Batches that all have one shape, so that a step can be recorded once and replayed.

What is left over of an index points at a row, a token or a line that no sample has, and weighs nothing in the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from demo.train.batch_plan import Bucket, Plan

SPARE = 64  # rows at the end of a sequence that no sample has
PIECE = 512  # rows and tokens of no sample form segments of this length


@dataclass(frozen=True)
class Capacity:
    """Most rows, samples, tokens, vision tokens, video rows and audio rows of a batch; tokens of one presentation."""

    rows: int
    samples: int
    tokens: int
    seen: int
    video: int
    audio: int
    line: int
    longest: int  # rows of a sample

    @property
    def room(self) -> NDArray[np.int64]:
        """What samples may fill."""
        return np.array([self.rows - SPARE, self.samples - 1, self.tokens, self.seen, self.video, self.audio], np.int64)


def capacity_of(buckets: Sequence[Bucket], rows: int) -> Capacity:
    """For batches of `rows` rows of these buckets."""
    tokens = [len(b.form.prefix) + max(len(p) for prompts in b.prompts for p in prompts) for b in buckets if len(b)]
    longest = max(t + b.form.rows for t, b in zip(tokens, [b for b in buckets if len(b)], strict=True))
    line = -(-max(tokens) // 32) * 32
    fewest = min(b.form.rows for b in buckets if len(b))
    return Capacity(
        rows=rows,
        samples=rows // fewest + 2,
        tokens=max(rows // 5, line),
        seen=max(rows // 10, line),
        video=max(rows * 3 // 4, longest),
        audio=max(rows * 3 // 4, longest),
        line=line,
        longest=-(-max(longest, PIECE) // 128) * 128,
    )


def pad(plan: Plan, capacity: Capacity) -> Plan:
    """The same batch in the shape of `capacity`."""
    cut = dict(_arrays(plan))
    used, batch = sum(plan.text_lengths), plan.samples
    lines = capacity.samples
    rows_free = capacity.rows - SPARE, SPARE
    tokens_free = (lines - 1) * capacity.line, capacity.line
    moved = {name: _on_longer_lines(cut[name], cut["ids"].shape[1], capacity.line) for name in ("tokens", "seen")}
    found = {
        "ids": _filled(cut["ids"], (lines, capacity.line)),
        "places": _filled(cut["places"], (3, lines, capacity.line)),
        "tokens": _spread(moved["tokens"], capacity.tokens, *tokens_free),
        "seen": _spread(moved["seen"], capacity.seen, *tokens_free),
        "text": _spread(cut["text"], capacity.tokens, *rows_free),
        "video": _spread(cut["video"], capacity.video, *rows_free),
        "audio": _spread(cut["audio"], capacity.audio, *rows_free),
        "picks": _filled(cut["picks"], (lines,)),
        "positions": cut["positions"],
        **{name: cut[name] for name in ("tags", "kinds", "sample")},
        "video_weights": _weights(cut["video_weights"], plan.condition_video_rows, capacity.video),
        "audio_weights": _weights(cut["audio_weights"], plan.condition_audio_rows, capacity.audio),
    }
    rows = _with_pieces(plan.row_lengths[:batch], capacity.rows, lines)
    tokens = _with_pieces(plan.text_lengths, capacity.tokens, lines)
    assert used <= capacity.tokens
    found["row_bounds"], found["text_bounds"] = (np.cumsum([0, *lengths]) for lengths in (rows, tokens))
    shapes = [tuple((name, found[name].shape) for name, _ in part) for part in (plan.ints, plan.floats)]
    ints = [found[name].ravel().astype(np.int32) for name, _ in plan.ints]
    bits = [found[name].ravel().astype(np.float32).view(np.int32) for name, _ in plan.floats]
    return replace(
        plan,
        buffer=np.concatenate([*ints, *bits]),
        ints=shapes[0],
        floats=shapes[1],
        row_lengths=tuple(rows),
        text_lengths=tuple(tokens),
        places=lines,
        longest=(capacity.longest, max(capacity.line, PIECE)),
        padded=True,
    )


def _arrays(plan: Plan) -> list[tuple[str, NDArray[np.generic]]]:
    count = sum(math.prod(shape) for _, shape in plan.ints)
    parts = ((plan.buffer[:count], plan.ints), (plan.buffer[count:].view(np.float32), plan.floats))
    found = []
    for values, shapes in parts:
        ends = np.cumsum([math.prod(shape) for _, shape in shapes])[:-1]
        found += [(n, part.reshape(s)) for part, (n, s) in zip(np.split(values, ends), shapes, strict=True)]
    return found


def _spread(index: NDArray[np.generic], size: int, start: int, count: int) -> NDArray[np.generic]:
    """What is left over points at `count` places from `start` on in turn: gradients add up there one after another."""
    return np.concatenate([index, start + np.arange(size - len(index)) % count])


def _filled(values: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    whole = np.zeros(shape, values.dtype)
    whole[tuple(slice(n) for n in values.shape)] = values
    return whole


def _on_longer_lines(index: NDArray[np.int32], old: int, new: int) -> NDArray[np.generic]:
    line, place = np.divmod(index, old)
    longer: NDArray[np.int32] = line * new + place
    return longer


def _weights(values: NDArray[np.generic], conditions: int, size: int) -> NDArray[np.generic]:
    whole = np.zeros(size, values.dtype)
    whole[conditions : conditions + len(values)] = values
    return whole


def _with_pieces(lengths: Sequence[int], size: int, samples: int) -> list[int]:
    """The lengths, then what is left over in pieces, then empty segments up to one number of them."""
    left = size - sum(lengths)
    pieces = [PIECE] * (left // PIECE) + ([left % PIECE] if left % PIECE else [])
    whole = [*lengths, *pieces]
    return whole + [0] * (samples + -(-size // PIECE) + 1 - len(whole))
