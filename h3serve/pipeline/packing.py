"""The packed sequence: latents as rows, which row is what, and where it lies in time and space.

spec/transformer.md 2.1, spec/packing.md 3.2-3.4.

Pure functions on numpy; positions are float64 and are only later rounded to float32. There are no
padding rows: a kernel that wants a multiple adds and hides them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from h3serve.core.segments import Segment
from h3serve.pipeline.intermediates import Intermediates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VIDEO_TAG, TEXT_TAG, AUDIO_TAG = 0, 1, 2
FRAME_UNITS = 5 / 3  # one pixel frame at 24 fps, in units of 1/40 s
LATENT_PATTERN = (1, 4, 4, 4, 4)  # pixel frames that a latent frame covers, by index mod 5
SPATIAL_SCALE = 32.0

# Row kinds, by the timestep that a row is given (spec/transformer.md 2.3).
FOLLOWS_VIDEO, VISUAL_CONDITION, FOLLOWS_AUDIO, AUDIO_CONDITION = 0, 1, 2, 3


@dataclass(frozen=True)
class PackedLayout:
    """S rows: positions float64 [S,3] as (t, h, w), tags and kinds int64 [S], indices of each modality.

    In `video_index` and `audio_index` the condition rows come first, in packed order.
    """

    positions: Floats
    tags: Ints
    kinds: Ints
    text_index: Ints
    video_index: Ints
    audio_index: Ints
    condition_video_rows: int
    condition_audio_rows: int


@dataclass(frozen=True)
class _Block:
    positions: Floats
    tag: int
    kind: int


def pack(text_tags: Ints, conditions: Sequence[Segment], target: Segment) -> PackedLayout:
    """Text, keyframes, references in request order, target audio, target video."""
    text = np.zeros((len(text_tags), 3))
    text[:, 0] = np.arange(len(text_tags))
    references = [s for s in conditions if s.kind != "keyframe"]
    blocks, origin = _reference_blocks(references, target, float(len(text_tags)))
    blocks = [_keyframe(s, target, origin) for s in conditions if s.kind == "keyframe"] + blocks
    target_w = spatial_axes(target)[1]
    blocks += [
        _Block(audio_positions(origin, target.audio_latents, target_w), AUDIO_TAG, FOLLOWS_AUDIO),
        _Block(video_positions(origin, target), VIDEO_TAG, FOLLOWS_VIDEO),
    ]
    tags = np.concatenate([text_tags, *(np.full(len(b.positions), b.tag, np.int64) for b in blocks)])
    kinds = np.concatenate(
        [np.full(len(text), FOLLOWS_VIDEO), *(np.full(len(b.positions), b.kind) for b in blocks)]
    ).astype(np.int64)
    after_text = np.arange(len(tags)) >= len(text)
    return PackedLayout(
        positions=np.concatenate([text, *(b.positions for b in blocks)]),
        tags=tags,
        kinds=kinds,
        text_index=np.arange(len(text)),
        video_index=np.flatnonzero(after_text & (tags == VIDEO_TAG)),
        audio_index=np.flatnonzero(after_text & (tags == AUDIO_TAG)),
        condition_video_rows=int((kinds == VISUAL_CONDITION).sum()),
        condition_audio_rows=int((kinds == AUDIO_CONDITION).sum()),
    )


def keep_layout(layout: PackedLayout, kept: Intermediates) -> None:
    """Keeps the packed layout under the names of `intermediates.py`."""
    kept.put(
        "positions",
        position_ids=layout.positions,
        token_tags=layout.tags,
        text_indices=layout.text_index,
        video_indices=layout.video_index,
        audio_indices=layout.audio_index,
        condition_video_rows=layout.condition_video_rows,
        condition_audio_rows=layout.condition_audio_rows,
    )


def video_to_rows(latents: Tensor) -> Tensor:
    """[1,24,T,H,W] -> [T*H/2*W/2, 96], a row a 2x2 patch, channel-major: index in a row is channel*4 + dy*2 + dx."""
    _, channels, frames, height, width = latents.shape
    patches = latents[0].reshape(channels, frames, height // 2, 2, width // 2, 2)
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * 4)


def rows_to_video(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse; `shape` is [1,24,T,H,W]."""
    _, channels, frames, height, width = shape
    patches = rows.reshape(frames, height // 2, width // 2, channels, 2, 2)
    return patches.permute(3, 0, 1, 4, 2, 5).reshape(shape)


def audio_to_latents(rows: Tensor) -> Tensor:
    """[2*T, 32] (left channel, then right) -> [2, 32, T]."""
    return rows.reshape(2, -1, rows.shape[1]).transpose(1, 2)


def spatial_axes(segment: Segment) -> tuple[Floats, Floats]:
    """(h, w) coordinates of patch rows and columns: 32 units across the square root of the area."""
    height, width = segment.latent_size
    root = np.sqrt(height * width)
    return _axis(height, root), _axis(width, root)


def video_times(origin: float, latent_frames: int) -> Floats:
    """Start time of every latent frame, summed one after another."""
    return origin + np.concatenate([[0.0], np.cumsum(_durations(latent_frames))[:-1]])


def video_positions(origin: float, segment: Segment) -> Floats:
    """[T*ph*pw, 3]: frame, then patch row, then patch column."""
    h, w = spatial_axes(segment)
    grid = np.meshgrid(video_times(origin, segment.latent_frames), h, w, indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, 3)


def audio_positions(origin: float, latents: int, w_axis: Floats) -> Floats:
    """[2*latents, 3]: left channel at the first value of the w axis, then right at the last."""
    rows = np.zeros((2, latents, 3))
    rows[:, :, 0] = origin + np.arange(latents)
    rows[0, :, 2], rows[1, :, 2] = w_axis[0], w_axis[-1]
    return rows.reshape(-1, 3)


def _axis(length: int, root: float) -> Floats:
    ratio = length / root
    start = (1 - ratio) / 2
    return np.linspace(start, start + ratio, length // 2, endpoint=False) * SPATIAL_SCALE


def _durations(latent_frames: int) -> Floats:
    return FRAME_UNITS * np.array([LATENT_PATTERN[k % 5] for k in range(latent_frames)], np.float64)


def _keyframe(segment: Segment, target: Segment, origin: float) -> _Block:
    """On the target's grid: the first at its origin, the last at the start of its last pixel frame."""
    time = origin
    if segment.is_last:  # numpy's pairwise sum, as in the reference
        time = origin + float(np.sum(_durations(target.latent_frames))) - FRAME_UNITS
    return _Block(video_positions(time, segment), VIDEO_TAG, VISUAL_CONDITION)


def _reference_blocks(references: Sequence[Segment], target: Segment, clock: float) -> tuple[list[_Block], float]:
    """Blocks of all references, and the clock after them: the target's origin."""
    blocks: list[_Block] = []
    for segment in references:
        axis = spatial_axes(target if segment.kind == "audio" else segment)[1]
        if segment.audio_latents:
            blocks.append(_Block(audio_positions(clock, segment.audio_latents, axis), AUDIO_TAG, AUDIO_CONDITION))
        if segment.latent_frames:
            blocks.append(_Block(video_positions(clock, segment), VIDEO_TAG, VISUAL_CONDITION))
        clock += _advance(segment)
    return blocks, clock


def _advance(segment: Segment) -> float:
    """How far a reference moves the clock: an image by one unit, whatever it shows."""
    if segment.kind == "image":
        return 1.0
    span = float(np.cumsum(_durations(segment.latent_frames))[-1]) if segment.latent_frames else 0.0
    return max(float(segment.audio_latents), span)
