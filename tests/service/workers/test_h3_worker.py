"""The engine of a real worker: a job's video carries the job's request, and nothing of the server."""

import json
from pathlib import Path

import av
import numpy as np
from PIL import Image

from h3serve.core.request import parse_request
from h3serve.core.settings import EngineSettings
from h3serve.service.workers.worker import H3Engine
from h3serve.weights.demo.demo_random import write_demo_checkpoint

SECRET = "mellon-4711"


def test_a_video_says_nothing_of_the_server(tmp_path: Path) -> None:
    model, inputs, cache = (tmp_path / SECRET / name for name in ("model", "inputs", "cache"))
    inputs.mkdir(parents=True)
    write_demo_checkpoint(model)
    pixels = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    Image.fromarray(pixels).save(inputs / "00.png")
    condition = {"type": "image", "uri": "00.png", "role": "keyframe", "frame_index": 0}
    target = {"short_edge": 64, "duration_seconds": 4}
    body = {"task": "fl2va", "prompt": "rain", "conditions": [condition], "target": target, "num_inference_steps": 1}
    job = parse_request(body).model_dump(mode="json")  # as the store has it
    settings = EngineSettings(str(model), device="cpu", cache=cache).to_json()
    out = tmp_path / SECRET / "video.mp4"
    H3Engine(settings).generate(job, inputs=inputs, output=out, on_progress=lambda *_: None)
    assert SECRET.encode() not in out.read_bytes() and b"00.png" not in out.read_bytes()
    with av.open(str(out)) as box:
        record = json.loads(box.metadata["comment"])
    assert record["request"]["prompt"] == "rain" and record["request"]["conditions"] == [
        {"type": "image", "role": "keyframe", "frame_index": 0}
    ]
