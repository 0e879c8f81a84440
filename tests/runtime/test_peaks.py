"""What the plan says of every stage against an H200 with everything resident (bench/results/memory_h200.md)."""

import pytest

from h3serve.core import segments
from h3serve.core.estimate_memory import encoding_bytes, work_of
from h3serve.core.estimate_work import GIB
from h3serve.core.media_probe import MediaProbe
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.video_vae.tile_batches import one_tile
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.runtime.machine import Machine
from h3serve.runtime.offload.policy import RELEASED_SIZES, choose
from h3serve.weights.formats.released_sizes import RELEASED

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
    tiles = one_tile(config, fused=True)._replace(encode_batch=4, decode_batch=53)
    guess = choose("resident", RELEASED_SIZES, work_of(plan, tiles=tiles), Machine(*(1000 * GIB,) * 4))
    assert plan.rows == rows
    for stage, seen in stages.items():
        assert guess.peaks[stage] / GIB == pytest.approx(seen, rel=0.02), stage
    assert guess.peak / GIB == pytest.approx(max(stages.values()), rel=0.02)


@pytest.mark.parametrize(("batch", "seen"), [(4, 9.2), (7, 15.0)])
def test_a_video_of_5_s_as_measured(batch: int, seen: float) -> None:
    """bench/results/h200.md, beside the pixels: all were on the device then, padded to 17 times 8 frames of float32."""
    config = VideoVAEConfig.from_dict(dict(RELEASED["video_vae"]))
    tiles = one_tile(config, fused=True)._replace(encode_batch=batch)
    whole, chunk = (frames * 1344 * 768 * 12 for frames in (136, 17))
    planned = encoding_bytes(segments.video((1344, 768), 124, 0), tiles) + whole - chunk
    assert planned / GIB == pytest.approx(seen, rel=0.01)
