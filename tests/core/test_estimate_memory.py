import json
from dataclasses import asdict, replace

import pytest

from h3serve.core import segments
from h3serve.core.errors import CapacityError
from h3serve.core.estimate_memory import Capacity, Tiles, encoding_bytes, work_of
from h3serve.core.estimate_work import GIB, RELEASED_MODEL, ModelSize, step_bytes
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request

TILES = Tiles(GIB, GIB // 14, GIB)
ROOM = Capacity({"encode text": 2 * GIB, "denoise": 8 * GIB}, usable=14 * GIB, free=15 * GIB, tiles=TILES)


def plan(seconds: float, steps: int = 50) -> Plan:
    target = {"short_edge": 768, "duration_seconds": seconds}
    return Plan.resolve(parse_request({"task": "t2va", "prompt": "a", "target": target, "num_inference_steps": steps}))


def test_what_fits_passes_and_what_does_not_is_refused_with_the_numbers() -> None:
    ROOM.check(plan(4))
    with pytest.raises(CapacityError, match=r"denoise needs 22.01 GiB .* 14.00 GiB are usable \(15.00 GiB free"):
        ROOM.check(plan(15))


def test_too_many_steps() -> None:
    with pytest.raises(CapacityError, match=r"modulation of all steps is \d+\.\d\d GiB, at most 4.00 .* fewer steps"):
        ROOM.check(plan(4, steps=1000))


@pytest.mark.parametrize(
    ("edge", "ratio", "there"),
    [(64, "1:1", 1), (256, "1:1", 1), (256, "16:9", 2), (512, "16:9", 15), (768, "16:9", 28)],
)
def test_no_more_tiles_are_at_once_than_a_window_has(edge: int, ratio: str, there: int) -> None:
    target = {"short_edge": edge, "aspect_ratio": ratio, "duration_seconds": 4}
    some = Plan.resolve(parse_request({"task": "t2va", "prompt": "a", "target": target}))
    window, tile = 28 * some.canvas[0] * some.canvas[1] * 3 * 4, 3 * GIB
    assert work_of(some, tiles=Tiles(GIB, 0, tile, 50, 50)).stages["decode"] == there * tile + window
    assert work_of(some, tiles=Tiles(GIB, 0, tile, 50, 1)).stages["decode"] == tile + window
    assert work_of(some, tiles=Tiles(GIB, 0, 0, 50, 50)).stages["decode"] == 6 * window


def test_what_is_encoded_counts_by_its_own_size() -> None:
    """Tiles in flight, the normalized pixels of a chunk and of those tiles, and 48 float32 values a latent."""
    tiles = Tiles(14 * GIB, GIB, 0, encode_batch=4)
    wide, tile = (1344, 768), 256 * 256

    def expected(tiles_bytes: int, frames: int, area: int, at_once: int, latents: int) -> int:
        return tiles_bytes + frames * (area + at_once * tile) * 12 + latents * (area // 256) * 48 * 4

    assert encoding_bytes(segments.image((256, 256)), tiles) == expected(GIB, 1, tile, 1, 1)
    assert encoding_bytes(segments.image(wide), tiles) == encoding_bytes(segments.keyframe(wide, is_last=True), tiles)
    assert encoding_bytes(segments.image(wide), tiles) == expected(28 * GIB, 1, 1344 * 768, 28, 1)
    assert encoding_bytes(segments.image((2048, 2048)), tiles) == expected(68 * GIB, 1, 2048**2, 68, 1)  # of 121
    assert encoding_bytes(segments.video((256, 256), 56, 0), tiles) == expected(14 * GIB, 17, tile, 1, 17)
    assert encoding_bytes(segments.video(wide, 56, 64_000), tiles) == expected(56 * GIB, 17, 1344 * 768, 4, 17)
    assert encoding_bytes(segments.audio(64_000), tiles) == 14 * GIB


def test_a_longer_reference_video_costs_no_more_than_its_latents() -> None:
    """A chunk at a time: 15 s and 5 s of 1344x768 are 107 and 37 latents."""
    tiles = Tiles(2 * GIB, 0, 0, encode_batch=4)
    short, long = (encoding_bytes(segments.video((1344, 768), frames, 0), tiles) for frames in (124, 362))
    assert long - short == 70 * 84 * 48 * 48 * 4
    assert short < 8.5 * GIB  # with all pixels there it was 4.6 GiB more


def test_weights_of_four_bytes_count_as_such() -> None:
    double = replace(plan(4), model=replace(RELEASED_MODEL, value_bytes=4))
    for stage in ("encode text", "denoise"):
        assert work_of(double, tiles=TILES).stages[stage] == 2 * work_of(plan(4), tiles=TILES).stages[stage]
    assert work_of(double, tiles=TILES).slab == 2 * work_of(plan(4), tiles=TILES).slab
    assert double.peak_bytes == 2 * plan(4).peak_bytes


def test_it_travels_as_json() -> None:
    again = Capacity(**json.loads(json.dumps(asdict(ROOM))))
    again.check(plan(4))
    with pytest.raises(CapacityError):
        again.check(plan(15))


@pytest.mark.parametrize(("inner", "ffn", "widest"), [(16, 4, 4 * 16), (16, 100, 3 * 100), (12, 16, 48)])
def test_a_block_s_widest_moment_is_in_attention_or_in_the_mlp(inner: int, ffn: int, widest: int) -> None:
    """Four residual-wide values a row, and q, k, v and what attention gives, or both inner widths and their product."""
    model = ModelSize(hidden=8, inner=inner, ffn=ffn, value_bytes=4)
    assert step_bytes(10, model) == 10 * (4 * 8 + widest) * 4
