import json
from dataclasses import asdict

import pytest

from h3serve.core import segments
from h3serve.core.capacity import Capacity, Tiles, encoding_bytes, work_of
from h3serve.core.cost import GIB
from h3serve.core.errors import CapacityError
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request

ROOM = Capacity({"encode text": 2 * GIB, "denoise": 8 * GIB}, usable=14 * GIB, free=15 * GIB, tiles=Tiles(GIB, GIB))


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
    assert work_of(some, tiles=Tiles(GIB, tile, 50, 50)).stages["decode"] == there * tile + window
    assert work_of(some, tiles=Tiles(GIB, tile, 50, 1)).stages["decode"] == tile + window
    assert work_of(some, tiles=Tiles(GIB, 0, 50, 50)).stages["decode"] == 6 * window


def test_what_is_encoded_counts_by_its_own_size() -> None:
    tiles = Tiles(14 * GIB, 0, encode_batch=4)
    wide = (1344, 768)
    assert encoding_bytes(segments.picture((256, 256)), tiles) == GIB
    assert encoding_bytes(segments.picture(wide), tiles) == encoding_bytes(segments.keyframe(wide, is_last=True), tiles)
    assert encoding_bytes(segments.picture(wide), tiles) == 28 * GIB
    assert encoding_bytes(segments.picture((2048, 2048)), tiles) == 68 * GIB  # of 121 tiles
    assert encoding_bytes(segments.clip((256, 256), 56, 0), tiles) == 14 * GIB
    assert encoding_bytes(segments.clip(wide, 56, 64_000), tiles) == 4 * 14 * GIB
    assert encoding_bytes(segments.sound(64_000), tiles) == 14 * GIB


def test_it_travels_as_json() -> None:
    again = Capacity(**json.loads(json.dumps(asdict(ROOM))))
    again.check(plan(4))
    with pytest.raises(CapacityError):
        again.check(plan(15))
