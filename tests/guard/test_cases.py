import pytest
import yaml

from h3serve.core.errors import RequestError
from h3serve.guard.cases import load_cases
from h3serve.guard.thresholds import MIB, FrameLimits

CASE = {
    "id": "one",
    "partition": "fl2va",
    "gpus": 1,
    "checks": ["frames"],
    "estimate_s": 10,
    "request": {"task": "t2va", "prompt": "rain", "target": {"duration_seconds": 4}},
}


def write(tmp_path, *cases, **top):
    path = tmp_path / "cases.yaml"
    path.write_text(yaml.safe_dump({"cases": list(cases), **top}))
    return path


@pytest.mark.parametrize("name", ["demo", "full"])
def test_shipped_sets_cover_every_task(name):
    cases = load_cases([name])
    kinds = {
        (
            case.gpus,
            case.request.task,
            tuple(c.type for c in case.request.references),
            tuple(c.frame_index for c in case.request.keyframes),
        )
        for case in cases
    }
    wanted = {("t2va", (), ())} | {("fl2va", (), keys) for keys in ((0,), (-1,), (0, -1))}
    wanted |= {("ref2va", kinds, ()) for kinds in (("image",), ("image", "audio"), ("video_audio",))}
    assert kinds == {(gpus, *rest) for gpus in ([0] if name == "demo" else [1, 2]) for rest in wanted}


def test_the_gpu_demo_guards_megabytes():
    """A copy of one small buffer must show, so the constant part of the tolerance is far below 128 MiB."""
    cases = load_cases(["demo-gpu", "demo-2gpu"])
    assert {(case.gpus, case.settings.ulysses, case.settings.tp) for case in cases} == {
        (1, None, None),
        (2, 2, None),
        (2, None, 2),
    }
    assert all({"memory", "time"} <= set(case.checks) for case in cases)
    assert all(case.thresholds.memory.runtime_bytes <= 2 * MIB for case in cases)


def test_limits_are_overridden_one_by_one(tmp_path):
    (case,) = load_cases([write(tmp_path, CASE | {"thresholds": {"frames": {"ssim": 0.99}}})])
    assert case.thresholds.frames == FrameLimits(ssim=0.99)


def test_defaults_lie_under_every_case(tmp_path):
    defaults = {"thresholds": {"frames": {"ssim": 0.99, "psnr_db": 40}}, "gpus": 3}
    (case,) = load_cases([write(tmp_path, CASE | {"thresholds": {"frames": {"ssim": 0.5}}}, defaults=defaults)])
    assert (case.thresholds.frames.ssim, case.thresholds.frames.psnr_db, case.gpus) == (0.5, 40, 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": 1}, "one: colour"),
        ({"thresholds": {"frames": {"sim": 1}}}, "one: thresholds.frames.sim"),
        ({"thresholds": {"sound": {"drift_s": float("nan")}}}, "one: thresholds.sound.drift_s"),
        ({"checks": ["smell"]}, "one: checks[0]"),
        ({"checks": []}, "one: checks"),
        ({"estimate_s": 0}, "one: estimate_s"),
        ({"gpus": 0, "checks": ["frames", "memory"]}, "one: case"),
        ({"partition": "ref2va"}, "one: case"),
        ({"request": {"task": "t2va", "prompt": "rain", "fps": 30}}, "one: request.fps"),
        ({"request": {"task": "ref2va", "prompt": "rain"}}, "one: request.conditions"),
        ({"settings": {"speed": "high"}}, "one: settings.speed"),
        ({"settings": {"tp": 2}}, "one: case"),
    ],
)
def test_a_wrong_case_names_file_case_and_field(tmp_path, change, field):
    with pytest.raises(RequestError) as caught:
        load_cases([write(tmp_path, CASE | change)])
    assert caught.value.field == f"cases.yaml: {field}"


@pytest.mark.parametrize("case_id", ["One", "a/b", "../x", "", "-a"])
def test_an_id_is_a_safe_folder_name(tmp_path, case_id):
    with pytest.raises(RequestError, match="id"):
        load_cases([write(tmp_path, CASE | {"id": case_id})])


def test_an_id_names_one_case(tmp_path):
    with pytest.raises(RequestError, match="names 2"):
        load_cases([write(tmp_path, CASE, CASE)])


@pytest.mark.parametrize("text", ["", "a: [", "[]", "cases: []"])
def test_a_broken_file_is_one_sentence(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(RequestError):
        load_cases([path])


def test_a_missing_file_names_the_shipped_sets(tmp_path):
    with pytest.raises(RequestError, match="demo, demo-gpu, demo-2gpu, full or a readable YAML file"):
        load_cases([tmp_path / "none.yaml"])
