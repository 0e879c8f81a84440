"""What the networks are given of a request's media: upright, and from the time that was asked for."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from h3serve.core.request import parse_request
from h3serve.pipeline.ingest import Ingest
from tests.media.films import corners, counter, counts, film, quadrants
from tests.media.sounds import click, click_time


def read(task: str, conditions: list[dict[str, Any]], ratio: str = "16:9", seconds: float = 4, **fields: Any) -> Any:
    target = {"short_edge": 64, "aspect_ratio": ratio, "duration_seconds": seconds}
    return Ingest().read(
        parse_request({"task": task, "prompt": "x", "conditions": conditions, "target": target, **fields})
    )


def keyframe(uri: Path, index: int) -> dict[str, Any]:
    return {"type": "image", "role": "keyframe", "frame_index": index, "uri": str(uri)}


@pytest.mark.parametrize(
    ("orientation", "seen", "canvas"), [(1, "rgby", (96, 64)), (6, "bryg", (64, 96)), (8, "gyrb", (64, 96))]
)
def test_a_turned_keyframe(tmp_path: Path, orientation: int, seen: str, canvas: tuple[int, int]) -> None:
    """EXIF decides which way is up and, with `auto`, the canvas."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(quadrants(96, 64)).save(tmp_path / "a.png", exif=exif)
    plan, prepared = read("fl2va", [keyframe(tmp_path / "a.png", -1)], ratio="auto")
    assert (plan.canvas, corners(prepared[0].frames[0])) == (canvas, seen)


def test_a_video_of_129_frames_at_25_is_124_at_24(tmp_path: Path) -> None:
    """5.16 s are 123.84 frames: the last one is not lost."""
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(129)], rate=25)
    plan, prepared = read("ref2va", [{"type": "video", "role": "reference", "uri": str(path)}], seconds=6)
    assert len(prepared[0].frames) == 124 and plan.conditions[0].latent_frames == 37


def test_start_time_is_that_of_picture_and_sound(tmp_path: Path) -> None:
    """A click at 3 s and frame 72, from 1.5 s on: at 1.5 s and frame 36."""
    sound = click(32_000, 6.0, at=3.0)
    path = film(tmp_path / "a.mp4", [counter(i) for i in range(144)], sound=sound)
    reference = {"type": "video_audio", "role": "reference", "uri": str(path), "start_time_seconds": 1.5}
    _, prepared = read("ref2va", [reference])
    assert counts(prepared[0].frames)[:90] == list(range(36, 126))
    assert click_time(prepared[0].wave) == pytest.approx(1.5, abs=1e-3)
