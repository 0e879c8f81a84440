"""The detectors are right about what is known exactly: clean renders, and renders that are soft, noisy and dull."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from demo.degrade import degrade_audio, degrade_video
from demo.detect import hear, see
from demo.world import Example, make_example, render, synthesize
from demo.world.names import PITCHES, small_canvases
from h3serve.guard.image_metrics import psnr_db

KINDS = ("t2va", "t2va", "picture", "continue")  # of a continued clip the start is missing
CLEAN, DEGRADED = 40, 20
RIGHT = 0.98


def misses(example: Example, video: Any, audio: Any) -> set[str]:
    """Everything that the detectors get wrong of one clip."""
    scene, seen, heard = example.scene, see(video), hear(audio)
    thing, events, move = scene.things[0], scene.events, seen.move
    right = {
        "background": seen.background == scene.background,
        "count": seen.count == len(scene.things),
        "colour": seen.colours == tuple(t.colour for t in scene.things),
        "shape": seen.shapes == tuple(t.shape for t in scene.things),
        "size": seen.sizes == tuple(t.size for t in scene.things),
        "motion": (move.kind, move.direction) == (scene.motion.kind, scene.motion.direction),
        "side": move.side == scene.motion.side,
        "visible events": _close(move.times, [e.time_s for e in events], 0.06),
        "their places": _close(move.x, [e.x for e in events], 0.05),
        "onsets": _close([n.time_s for n in heard.notes], [e.time_s for e in events], 0.02),
        "pitch": all(n.pitch == PITCHES[thing.size][0] for n in heard.notes),
        "timbre": all(n.material == thing.material for n in heard.notes),
        "pan": _close([n.x for n in heard.notes], [e.x for e in events], 0.08),
        "ambience": heard.ambience == scene.ambience,
    }
    return {name for name, ok in right.items() if not ok}


def _close(found: Any, wanted: Any, most: float) -> bool:
    return len(found) == len(wanted) and all(abs(a - b) <= most for a, b in zip(found, wanted, strict=True))


def rates(count: int, degraded: bool) -> Counter[str]:
    wrong: Counter[str] = Counter()
    for seed in range(count):
        example = make_example(seed + 70_000, KINDS[seed % 4], small_canvases()[seed % 5])
        video, audio = render([example.scene])[0].numpy(), synthesize([example.scene])[0].numpy()
        if degraded:
            video, audio = degrade_video(video, seed), degrade_audio(audio, seed)
        wrong.update(misses(example, video, audio))
    return wrong


@pytest.mark.parametrize(("count", "degraded"), [(CLEAN, False), (DEGRADED, True)])
def test_every_attribute_is_right(count: int, degraded: bool) -> None:
    wrong = rates(count, degraded)
    assert {name: n for name, n in wrong.items() if n > (1 - RIGHT) * count} == {}


def test_degraded_means_about_thirty_decibel() -> None:
    video = render([make_example(5, "t2va").scene])[0].numpy()
    assert 27 < np.mean([psnr_db(a, b) for a, b in zip(video[::10], degrade_video(video)[::10], strict=True)]) < 32


def test_nothing_is_found_where_nothing_is() -> None:
    empty = np.full((107, 64, 64, 3), (15, 20, 85), np.uint8)
    seen = see(empty)
    assert seen.background == "dark blue" and seen.count == 0 and seen.move.kind == "still"
    heard = hear(np.zeros((2, 142_400), np.float32))
    assert heard.notes == () and heard.ambience == "none"


def test_noise_alone_neither_moves_nor_strikes() -> None:
    """Every pixel is new in every frame, about a mean of grey; a steady hiss has no onset, and is the wind's sound."""
    random = np.random.default_rng(0)
    seen = see(random.integers(0, 255, (107, 64, 64, 3), dtype=np.uint8))
    assert seen.background == "grey" and seen.move.kind == "still" and seen.move.times == ()
    heard = hear(random.normal(0, 0.1, (2, 142_400)).astype(np.float32))
    assert heard.notes == () and heard.ambience == "wind"


def test_two_things_in_one_half_are_one_track() -> None:
    video = np.full((24, 64, 96, 3), (15, 20, 85), np.uint8)
    video[:, 8:20, 8:20] = video[:, 40:52, 8:20] = (220, 40, 40)
    seen = see(video)
    assert seen.count == 2
    assert seen.colours == ("red",)


def test_blobs_everywhere() -> None:
    noise = ndimage.gaussian_filter(np.random.default_rng(0).standard_normal((24, 64, 96, 3)), (1, 2, 2, 0))
    seen = see(np.clip(128 + 300 * noise, 0, 255).astype(np.uint8))
    assert seen.background == "grey" and seen.count > 2
    assert len(seen.colours) == len(seen.shapes) == len(seen.sizes) >= 1
    assert all(0 <= time < 1 for time in seen.move.times)  # the clip lasts 24 frames
    assert all(0 <= place <= 1 for place in (*seen.move.x, *seen.start))


@pytest.mark.parametrize("what", ["mirrored", "swapped channels", "late sound", "an octave up"])
def test_a_wrong_clip_is_called_wrong(what: str) -> None:
    example = next(
        e
        for e in (make_example(s, "t2va", (96, 64)) for s in range(99))
        if e.scene.motion.side == "left" and e.scene.things[0].size == "large"
    )
    video, audio = render([example.scene])[0].numpy(), synthesize([example.scene])[0].numpy()
    assert misses(example, video, audio) == set()
    if what == "mirrored":
        assert misses(example, video[:, :, ::-1], audio) >= {"side", "their places"}
    elif what == "swapped channels":
        assert misses(example, video, audio[::-1]) == {"pan"}
    elif what == "late sound":
        assert misses(example, video, np.roll(audio, 3200, axis=1)) == {"onsets"}
    else:
        assert "pitch" in misses(example, video, np.repeat(audio[:, ::2], 1, axis=1))
