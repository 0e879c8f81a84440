"""The command line as a user meets it: clips come out, wrong input gives one line and exit code 2."""

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from h3serve.cli.main import run
from h3serve.weights.demo.demo_random import write_demo_checkpoint

SMALL = ["--device", "cpu", "--short-edge", "64", "--duration", "4", "--steps", "2", "--quiet"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(folder)
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "first.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (90, 120, 3), np.uint8)).save(path)
    return path


def test_t2va_makes_an_mp4_with_sound_and_exact_arrays(demo: Path, tmp_path: Path, capsys: Any) -> None:
    mp4, npz, trace = tmp_path / "a.mp4", tmp_path / "a.npz", tmp_path / "trace.json.gz"
    results = ["--out", str(mp4), "--out", str(npz), "--profile", str(trace)]
    assert run(["generate", "--model", str(demo), "--prompt", "rain", *results, *SMALL]) == 0
    assert trace.stat().st_size > 1000
    assert "107 frames" in capsys.readouterr().out
    with av.open(str(mp4)) as box:
        assert [s.type for s in box.streams] == ["video", "audio"]
        assert sum(1 for _ in box.decode(video=0)) == 107
    arrays = np.load(npz)
    assert arrays["video"].shape == (107, 64, 128, 3) and arrays["video"].std() > 1
    assert arrays["audio"].shape == (2, 142_400) and arrays["audio"].std() > 1e-4


def test_request_file_with_a_picture_beside_it(demo: Path, picture: Path, tmp_path: Path) -> None:
    body = {
        "task": "fl2va",
        "prompt": "it turns",
        "conditions": [{"type": "image", "role": "keyframe", "frame_index": 0, "uri": picture.name}],
        "target": {"short_edge": 64, "duration_seconds": 4},
        "num_inference_steps": 1,
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(body))
    frames, kept = f"{tmp_path / 'frames'}/", ("--encodings-cache", str(tmp_path / "kept"))
    assert run(["generate", str(file), "--model", str(demo), "--device", "cpu", "--quiet", "--out", frames, *kept]) == 0
    assert len(list((tmp_path / "kept").glob("*/*.safetensors"))) == 2  # the prompt and the picture
    made = sorted((tmp_path / "frames").glob("*.png"))
    assert len(made) == 107 and Image.open(made[0]).size == (96, 64)


BODY: dict[str, Any] = {
    "task": "t2va",
    "prompt": "x",
    "target": {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4},
}
KEY = {"type": "image", "role": "keyframe", "uri": "first.png"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": "t2v"}, "task"),
    ({"colour": 1}, "colour"),
    ({"prompt": ""}, "prompt"),
    *(
        ({"target": {**BODY["target"], "duration_seconds": v}}, "target.duration_seconds")
        for v in (3.99, 15.01, "4", float("nan"))
    ),
    ({"target": {**BODY["target"], "aspect_ratio": "5:1"}}, "target.aspect_ratio"),
    ({"task": "fl2va", "conditions": [{**KEY, "frame_index": i} for i in (0, -1, -1)]}, "conditions"),
    ({"task": "fl2va", "conditions": [{**KEY, "frame_index": 60}]}, "conditions[0].frame_index"),
    ({"task": "fl2va", "conditions": [{**KEY, "frame_index": 0, "uri": "missing.png"}]}, "conditions[0]"),
    ({"guidance_scale": 5.0}, "guidance_scale"),
    ({"negative_prompt": ""}, "negative_prompt"),
    ({"fps": 24}, "fps"),
    ({"num_frames": 107}, "num_frames"),
    ({"num_inference_steps": 0}, "num_inference_steps"),
    ({"num_inference_steps": -1}, "num_inference_steps"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
]


@pytest.mark.parametrize(("changes", "field"), WRONG, ids=lambda v: str(v)[:50])
def test_wrong_request_is_one_line_and_leaves_no_file(
    changes: dict[str, Any], field: str, demo: Path, picture: Path, tmp_path: Path, capfd: Any
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODY, **changes}))
    before = sorted(tmp_path.iterdir())
    code = run(
        ["generate", str(file), "--model", str(demo), "--device", "cpu", "--out", str(tmp_path / "o.mp4"), "--quiet"]
    )
    assert code == 2
    complaint = capfd.readouterr().err.strip()
    assert complaint.startswith(f"h3serve: {field}:") and "\n" not in complaint and "Traceback" not in complaint
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--out", "clip.avi"], "out"),
        (["--out", "/nowhere/clip.mp4"], "out"),
        (["--duration", "long"], "--duration"),
        (["--colour", "red"], "--colour"),
        (["--device", "tpu"], "device"),
        (["--device", "cuda:99"], "device"),
        (["--dtype", "int4"], "dtype"),
        (["--quality", "best"], "quality"),
        (["--quantize", "int4"], "quantize"),
        (["--profile", "trace.txt"], "profile"),
        (["--profile", "/nowhere/trace.json"], "profile"),
        (["--quantize", "fp8", "--quality", "exact"], "quantize"),
        (["--quantize", "none", "--quality", "fast"], "quantize"),
        (["--residency", "cloud"], "residency"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--first-frame", "missing.png"], "missing.png"),
        (["--reference", "missing.png"], "missing.png"),
    ],
)
def test_wrong_flag_is_one_line(
    arguments: list[str], word: str, demo: Path, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["generate", "--model", str(demo), "--prompt", "x", *SMALL, *arguments]) == 2
    complaint = capfd.readouterr().err.strip()
    assert complaint.startswith("h3serve: ") and word in complaint and "\n" not in complaint
    assert not list(tmp_path.iterdir())


def test_truncated_shard_is_named(demo: Path, tmp_path: Path, capfd: Any) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(demo, broken)
    shard = sorted((broken / "FL2VA" / "transformer").glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-1000])
    assert run(["generate", "--model", str(broken), "--prompt", "x", *SMALL, "--out", str(tmp_path / "o.mp4")]) == 2
    complaint = capfd.readouterr().err.strip()
    assert shard.name in complaint and "\n" not in complaint
    assert not (tmp_path / "o.mp4").exists()


def test_wrong_partition_says_what_is_there(demo: Path, picture: Path, capfd: Any) -> None:
    model = str(demo / "FL2VA")
    assert run(["generate", "--model", model, "--prompt", "x", "--reference", str(picture), *SMALL]) == 2
    complaint = capfd.readouterr().err.strip()
    assert "fl2va weights only" in complaint and "\n" not in complaint


def test_plan_prints_without_a_model(capsys: Any) -> None:
    assert run(["plan", "--prompt", "x", "--duration", "10", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["width"], shown["height"], shown["frames"]) == (1344, 768, 243)
    assert shown["rows"]["audio"] + shown["rows"]["video"] == 810 + 72_576


def test_without_a_file_a_clip_lasts_five_seconds(picture: Path, tmp_path: Path, capsys: Any) -> None:
    """As the README shows it; a body's duration, and one that is missing there, stay what they are."""
    for flags in ([], ["--first-frame", str(picture)], ["--short-edge", "64"]):
        assert run(["plan", "--prompt", "x", *flags, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["frames"] == 124
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"task": "t2va", "prompt": "x", "target": {"duration_seconds": 4}}))
    assert run(["plan", str(body), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 107
    body.write_text(json.dumps({"task": "t2va", "prompt": "x", "target": {"short_edge": 768}}))
    for arguments in ([str(body)], ["--prompt", "x", "--reference", str(picture)]):
        assert run(["plan", *arguments]) == 2
        assert "duration_seconds" in capsys.readouterr().err


def test_inspect_and_demo_checkpoint(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "twin"
    assert run(["demo-checkpoint", str(folder), "--layout", "diffusers"]) == 0
    assert run(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "diffusers layout" in shown and "partition fl2va: t2va, fl2va" in shown and "verdict: ok" in shown


def carried(path: Path) -> str:
    with av.open(str(path)) as box:
        return str(box.metadata.get("comment", ""))


def test_a_video_carries_its_request_and_is_made_again_from_it(
    demo: Path, picture: Path, tmp_path: Path, capsys: Any
) -> None:
    first, again, other = tmp_path / "a.mp4", tmp_path / "b.mp4", tmp_path / "c.mp4"
    made = ["--prompt", "it turns", "--first-frame", str(picture), "--seed", "9", "--solver", "multistep"]
    assert run(["generate", "--model", str(demo), *made, *SMALL, "--out", str(first)]) == 0
    bare = ["generate", "--model", str(demo), "--device", "cpu", "--quiet", "--from", str(first)]
    assert run([*bare, "--out", str(again)]) == 2
    assert "keyframe image" in capsys.readouterr().err
    assert run([*bare, "--first-frame", str(picture), "--out", str(again)]) == 0
    assert first.read_bytes() == again.read_bytes()
    assert run([*bare, "--first-frame", str(picture), "--seed", "10", "--out", str(other)]) == 0
    assert json.loads(carried(other))["request"]["seed"] == 10
    capsys.readouterr()
    assert run(["plan", "--json", "--from", str(first), "--first-frame", str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 107


def test_no_path_gets_into_a_video(demo: Path, picture: Path, tmp_path: Path) -> None:
    """Its own folder, the model's, the image's and the cache's are all below `tmp_path`'s."""
    out, cache = tmp_path / "a.mp4", tmp_path / "cache"
    places = ["--model", str(demo), "--cache", str(cache), "--encodings-cache", str(cache / "e")]
    assert run(["generate", *places, "--prompt", "rain", "--first-frame", str(picture), *SMALL, "--out", str(out)]) == 0
    data = out.read_bytes()
    assert b"h3serve" in data
    for secret in (tmp_path.name, demo.parent.name, picture.name, str(Path.home()), "uri"):
        assert secret.encode() not in data, secret
    known = json.loads(carried(out))["checkpoint"]
    assert known["partition"] == "fl2va" and len(known["sample"]) == 32 and "model" not in known


def test_it_can_be_left_out(demo: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "a.mp4"
    made = ["--prompt", "rain", "--no-carry-request", "--out", str(out)]
    assert run(["generate", "--model", str(demo), *made, *SMALL]) == 0
    assert carried(out) == "" and b"h3serve" not in out.read_bytes()
    assert run(["generate", "--from", str(out)]) == 2
    assert "it carries no request" in capsys.readouterr().err
