"""The release's own request bodies: they validate, plan to the published sizes, and run on the demo checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3serve import Generator
from h3serve.core.media_probe import MediaProbe
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.media.read.probe import probe_media
from h3serve.media.sources.media_file import MediaFile
from tests.paths import official


def body(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((official() / "requests" / f"{name}.json").read_text())
    return fields


def sample(name: str) -> str:
    return str(official() / "samples" / f"{name}.mp4")


@pytest.mark.parametrize(
    ("name", "probes", "frames", "conditions", "video", "audio"),
    [
        ("t2va", [], 243, 0, 72_576, 810),
        ("fl2va", [MediaProbe("image", 1344, 768)], 192, 1008, 57 * 1008, 640),
        (
            "ref2va",
            [
                MediaProbe("video", 1344, 768, 124 / 24, 24.0, True, 165_334 / 32_000),
                MediaProbe("audio", seconds=3.0, has_audio=True, audio_seconds=3.0),
            ],
            124,
            414 + 37_296 + 240,
            37_296,
            414,
        ),
    ],
)
def test_plan(name: str, probes: list[MediaProbe], frames: int, conditions: int, video: int, audio: int) -> None:
    plan = Plan.resolve(parse_request(body(name)), probes)
    assert plan.canvas == (1344, 768) and plan.frames == frames and plan.steps == 50
    assert (plan.condition_rows, plan.target.video_rows, plan.target.audio_rows) == (conditions, video, audio)


def test_ref2va_runs_with_the_sample_clips() -> None:
    fields = body("ref2va")
    fields["conditions"][0]["uri"] = sample("ref2va")
    fields["conditions"][1]["uri"] = sample("fl2va")  # its sound
    fields["target"]["short_edge"] = 64
    fields["num_inference_steps"] = 1
    generator = Generator.from_pretrained("demo-random", device="cpu", partition="ref2va")
    result = generator.generate(fields, keep=("positions", "text"))
    assert result.video.shape == (124, 64, 128, 3)
    assert result.kept["condition_audio_rows"] == 2 * (207 + 207)  # soundtrack, then the sound cut to the target
    assert result.kept["condition_video_rows"] == 37 * 2 * 4
    assert np.isfinite(result.audio).all() and result.audio.std() > 1e-4


def test_samples_are_read_as_they_were_made() -> None:
    for name, frames in (("t2va", 243), ("fl2va", 192), ("ref2va", 124)):
        probe = probe_media(MediaFile(Path(sample(name))))
        assert (probe.width, probe.height, probe.fps, probe.has_audio) == (1344, 768, 24.0, True)
        assert round(probe.seconds * 24) == frames
