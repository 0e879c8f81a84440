import dataclasses
from pathlib import Path

import pytest

from h3serve.service.http.video_json import job_view, percent, repeatable
from h3serve.service.jobs.job import Job, State
from h3serve.service.jobs.live_progress import Snapshot
from h3serve.service.service_settings import Retention, ServiceSettings

GIVEN = {"type": "image", "role": "keyframe", "frame_index": 0}
REQUEST = {
    "task": "fl2va",
    "prompt": "a",
    "target": {"short_edge": 64, "aspect_ratio": "auto", "duration_seconds": None},
    "conditions": [{**GIVEN, "uri": "00.png", "start_time_seconds": None}],
    "seed": 4,
    "flow_shift": None,
}
JOB = Job("video_1", "fl2va", REQUEST, {"width": 64, "height": 32, "seconds": 4.458}, state=State.IN_PROGRESS)
STAGES = ("start", "read media", "encode text", "encode conditions", "denoise", "decode audio", "decode video", "save")


def test_progress_only_grows_and_reaches_100_only_at_the_end() -> None:
    seen = [percent(JOB, Snapshot(stage, step, 10, None)) for stage in STAGES for step in range(11)]
    assert seen == sorted(seen) and seen[-1] < 100
    assert percent(dataclasses.replace(JOB, state=State.COMPLETED), None) == 100
    assert percent(dataclasses.replace(JOB, state=State.FAILED), None) == 0


def test_a_request_can_be_sent_again() -> None:
    body = repeatable(JOB)
    assert body["conditions"] == [{**GIVEN, "uri": "job:video_1/00.png"}]
    assert "flow_shift" not in body and body["seed"] == 4


@pytest.mark.parametrize(
    ("asked", "shown"), [(4, "4"), (4.0, "4"), (4.4, "4"), (4.5, "5"), (5.5, "6"), (14.9, "15"), (None, "6")]
)
def test_seconds_are_a_whole_number_and_the_exact_length_stands_beside(asked: float | None, shown: str) -> None:
    request = {**REQUEST, "target": {"duration_seconds": asked}}
    view = job_view(dataclasses.replace(JOB, request=request, plan={"seconds": 6.0 - 1 / 24}), ServiceSettings("demo"))
    assert view["seconds"] == shown and int(view["seconds"]) and view["duration_seconds"] == 6.0 - 1 / 24


@pytest.mark.parametrize(("kept_s", "expires"), [(60.0, 160), (None, None)])
def test_expiry(kept_s: float | None, expires: int | None) -> None:
    done = dataclasses.replace(JOB, state=State.COMPLETED, finished_at=100.0)
    settings = ServiceSettings("demo-random", retention=Retention(files_s=kept_s))
    view = job_view(done, settings)
    assert view["expires_at"] == expires and view["completed_at"] == 100
    assert view["seconds"] == "4" and view["duration_seconds"] == 4.458 and view["size"] == "64x32"
    assert job_view(JOB, settings)["expires_at"] is None


def test_the_models_name_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, looks = ServiceSettings(str(tmp_path)), []
    resolve = Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path: looks.append(path) or resolve(path))
    assert {job_view(JOB, settings)["model"] for _ in range(50)} == {tmp_path.name}
    assert len(looks) == 1
