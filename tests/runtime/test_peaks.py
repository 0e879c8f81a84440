"""What the plan says of every stage against an H200 with everything resident (bench/results/memory_h200.md)."""

import pytest

from h3serve.core.capacity import Tiles, work_of
from h3serve.core.cost import GIB
from h3serve.core.plan import Plan
from h3serve.core.probe import MediaProbe
from h3serve.core.request import parse_request
from h3serve.models.video_vae_config import VideoVAEConfig
from h3serve.models.video_vae_memory import decode_tile_bytes, encode_tile_bytes
from h3serve.runtime.machine import Machine
from h3serve.runtime.residency import RELEASED_SIZES, choose
from h3serve.weights.released import RELEASED

SEEN = {  # short edge, seconds: rows; GiB of a request with a first frame, weights included
    (256, 4): (4_320, {"encode text": 92.37, "encode conditions": 92.57, "denoise": 92.71, "decode": 92.59}),
    (512, 6): (22_634, {"encode text": 92.47, "encode conditions": 94.42, "denoise": 94.45, "decode": 93.92}),
    (768, 4): (34_784, {"encode text": 92.62, "encode conditions": 96.28, "denoise": 95.60, "decode": 95.40}),
}


@pytest.mark.parametrize(("shape", "rows", "stages"), [(shape, *seen) for shape, seen in SEEN.items()])
def test_every_stage_and_the_peak_as_measured(shape: tuple[int, int], rows: int, stages: dict[str, float]) -> None:
    edge, seconds = shape
    first = {"type": "image", "role": "keyframe", "frame_index": 0, "uri": "first.png"}
    target = {"short_edge": edge, "aspect_ratio": "16:9", "duration_seconds": seconds}
    body = {"task": "fl2va", "prompt": "a", "target": target, "num_inference_steps": 1, "conditions": [first]}
    probes = [MediaProbe("image", 336, 192)]
    own = Plan.resolve(parse_request(body), probes, prompt_tokens=1)
    plan = Plan.resolve(parse_request(body), probes, prompt_tokens=1 + rows - own.rows)
    config = VideoVAEConfig.from_dict(dict(RELEASED["video_vae"]))
    tiles = Tiles(encode_tile_bytes(config), decode_tile_bytes(config), 4, 53)
    guess = choose("resident", RELEASED_SIZES, work_of(plan, tiles=tiles), Machine(*(1000 * GIB,) * 4))
    assert plan.rows == rows
    for stage, seen in stages.items():
        assert guess.peaks[stage] / GIB == pytest.approx(seen, rel=0.02), stage
    assert guess.peak / GIB == pytest.approx(max(stages.values()), rel=0.02)
