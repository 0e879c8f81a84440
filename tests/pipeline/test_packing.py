"""The two fully enumerated toys and the worked numbers of spec/packing.md."""

import numpy as np
import pytest

from h3serve.core import segments
from h3serve.core.segments import Segment
from h3serve.pipeline.packing import pack, spatial_axes, video_times

LEFT, RIGHT, HIGH = -6.627417, 16.0, 4.686292
TARGET = Segment("target", (64, 32), latent_frames=2, audio_latents=3)  # latents 2x4


def text(length: int) -> np.ndarray:
    return np.ones(length, np.int64)


def test_toy_with_both_keyframes() -> None:
    conditions = [segments.keyframe((64, 32), is_last=False), segments.keyframe((64, 32), is_last=True)]
    packed = pack(text(3), conditions, TARGET)
    expected = [
        *[(1, i, 0, 0) for i in range(3)],
        *[(0, 3, HIGH, w) for w in (LEFT, RIGHT)],
        *[(0, 9.666667, HIGH, w) for w in (LEFT, RIGHT)],
        *[(2, 3 + i, 0, LEFT) for i in range(3)],
        *[(2, 3 + i, 0, RIGHT) for i in range(3)],
        *[(0, t, HIGH, w) for t in (3, 4.666667) for w in (LEFT, RIGHT)],
    ]
    assert packed.tags.tolist() == [row[0] for row in expected]
    np.testing.assert_allclose(packed.positions, [row[1:] for row in expected], atol=1e-6)
    assert packed.video_index.tolist() == [3, 4, 5, 6, 13, 14, 15, 16] and packed.condition_video_rows == 4
    assert packed.audio_index.tolist() == list(range(7, 13)) and packed.condition_audio_rows == 0


def test_toy_with_references() -> None:
    conditions = [
        Segment("image", (64, 64), 1),
        Segment("video", (32, 32), 2, audio_latents=3),
        Segment("audio", audio_latents=2),
    ]
    packed = pack(text(2), conditions, TARGET)
    end = 13.333333
    expected = [
        *[(1, i, 0, 0) for i in range(2)],
        *[(0, 2, h, w) for h in (0, 16) for w in (0, 16)],
        *[(2, 3 + i, 0, 0) for _ in range(2) for i in range(3)],
        (0, 3, 0, 0),
        (0, 4.666667, 0, 0),
        *[(2, 11.333333 + i, 0, w) for w in (LEFT, RIGHT) for i in range(2)],
        *[(2, end + i, 0, w) for w in (LEFT, RIGHT) for i in range(3)],
        *[(0, t, HIGH, w) for t in (end, 15.0) for w in (LEFT, RIGHT)],
    ]
    assert packed.tags.tolist() == [row[0] for row in expected]
    np.testing.assert_allclose(packed.positions, [row[1:] for row in expected], atol=1e-6)
    assert packed.video_index.tolist() == [2, 3, 4, 5, 12, 13, 24, 25, 26, 27] and packed.condition_video_rows == 6
    assert packed.audio_index.tolist() == [*range(6, 12), *range(14, 24)] and packed.condition_audio_rows == 10


def test_released_canvas_axes_and_row_ranges() -> None:
    target = segments.target((1344, 768), 107)
    h, w = spatial_axes(target)
    assert (len(h), len(w)) == (24, 42)
    np.testing.assert_allclose(
        [h[0], h[-1], w[0], w[-1]], [3.90513686, 27.08695787, -5.16601049, 36.15810522], atol=1e-8
    )
    np.testing.assert_allclose(np.diff(w), 1.0079052613, atol=1e-9)
    packed = pack(text(100), [], target)
    assert len(packed.tags) == 32_712
    assert packed.audio_index[0] == 100 and packed.audio_index[-1] == 455 and packed.video_index[0] == 456
    np.testing.assert_allclose(packed.positions[278], (100, 0, 36.15810522), atol=1e-8)
    np.testing.assert_allclose(
        video_times(100.0, 32)[:7], [100, 101.666667, 108.333333, 115, 121.666667, 128.333333, 130], atol=1e-5
    )


def test_reference_clock_of_the_worked_example() -> None:
    conditions = [segments.video((1344, 768), 124, 165_334), segments.audio(96_000)]
    packed = pack(text(10), conditions, segments.target((1344, 768), 124))
    assert len(packed.tags) == 10 + 75_660
    assert packed.positions[packed.audio_index[packed.condition_audio_rows], 0] == 10 + 327


def test_last_keyframe_is_later_than_the_last_latent_frame() -> None:
    canvas = (64, 64)
    packed = pack(text(4), [segments.keyframe(canvas, is_last=True)], segments.target(canvas, 124))
    anchor, last = packed.positions[4, 0], packed.positions[-1, 0]
    assert anchor - last == pytest.approx(20 / 3 - 5 / 3)


@pytest.mark.parametrize("length", [1, 7, 300])
def test_prompt_length_shifts_every_media_position(length: int) -> None:
    target = segments.target((96, 64), 107)
    a, b = pack(text(1), [], target), pack(text(length), [], target)
    shift = b.positions[length:] - a.positions[1:]
    np.testing.assert_allclose(shift, [[length - 1, 0, 0]] * len(shift), atol=1e-9)
