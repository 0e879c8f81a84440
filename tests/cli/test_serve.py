"""`h3serve serve` with the demo checkpoint: the three tasks over HTTP, as from the command line."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from h3serve.cli.main import run
from h3serve.service.http.api_keys import hash_key
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from tests.paths import official

H3SERVE = (sys.executable, "-c", "from h3serve.cli.main import main; main()")
TARGET = {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def http(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("serve")
    log = folder / "log"
    (folder / "adapters").mkdir()
    torch.manual_seed(0)
    factors = {"A": torch.randn(2, 64), "B": torch.randn(1536, 2) * 0.1}
    names = [f"blocks.{n}.attn.qkv_proj" for n in range(4)]
    tensors = {f"{name}.lora_{which}.weight": value.clone() for name in names for which, value in factors.items()}
    save_file(tensors, folder / "adapters" / "style.safetensors")
    (folder / "adapters" / "broken.safetensors").write_bytes(b"no header")
    options = ("--model", str(demo), "--port", "0", "--device", "cpu", "--partition", "both")
    options += ("--adapter-folder", str(folder / "adapters"))
    with log.open("w") as stderr:
        server = subprocess.Popen([*H3SERVE, "serve", *options, "--data", str(folder / "data")], stderr=stderr)
    try:
        address = until(lambda: re.search(r"listening on (http://\S+?)\"", log.read_text()))
        with httpx.Client(base_url=address[1], timeout=30, trust_env=False) as client:
            until(lambda: client.get("/ready").status_code == 200)
            yield client
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()


def until(look: Any, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return seen


def finish(http: httpx.Client, reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text

    def ended() -> Any:
        video = http.get(f"/v1/videos/{reply.json()['id']}").json()
        return video if video["status"] not in ("queued", "in_progress") else None

    video: dict[str, Any] = until(ended)
    assert video["status"] == "completed", video["error"]
    return video


def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)).save(file, "png")
    return file.getvalue()


def test_t2va_is_what_the_command_line_makes(http: httpx.Client, demo: Path, tmp_path: Path) -> None:
    body = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}
    video = finish(http, http.post("/v1/videos", json=body))
    served = http.get(f"/v1/videos/{video['id']}/content").content
    (tmp_path / "request.json").write_text(json.dumps(body))
    arguments = [str(tmp_path / "request.json"), "--model", str(demo), "--device", "cpu", "--quiet"]
    assert run(["generate", *arguments, "--out", str(tmp_path / "a.mp4")]) == 0
    assert served == (tmp_path / "a.mp4").read_bytes()
    assert video["size"] == "64x64" and video["plan"]["frames"] == 107 and video["stats"]["text_tokens"] > 0
    assert {"encode text", "denoise", "decode audio", "decode video"} <= set(video["stats"]["seconds"])
    assert video["stats"]["host_peak_bytes"] > 0


def test_an_adapter_is_on_for_its_own_job_only(http: httpx.Client) -> None:
    """One that cannot be read fails in one sentence; the server goes on, and nothing has changed."""
    body = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}

    def made(**more: Any) -> bytes:
        video = finish(http, http.post("/v1/videos", json={**body, **more}))
        assert [adapter["layers"] for adapter in video["stats"].get("adapters", [])] == [4] * bool(more)
        return http.get(f"/v1/videos/{video['id']}/content").content

    before = made()
    assert made(adapters=[{"name": "style"}]) != before
    broken = http.post("/v1/videos", json={**body, "adapters": [{"name": "style"}, {"name": "broken"}]}).json()
    failed = until(lambda: (v := http.get(f"/v1/videos/{broken['id']}").json())["status"] == "failed" and v)
    assert failed["error"]["code"] == "invalid_request"
    assert failed["error"]["message"].startswith("adapters[1].name: 'broken' is not usable")
    assert made() == before


def test_fl2va_from_an_uploaded_picture(http: httpx.Client) -> None:
    fields = {"prompt": "it turns", "num_inference_steps": "1", "size": "64x64"}
    file = {"input_reference": ("first.png", picture(), "image/png")}
    video = finish(http, http.post("/v1/videos", data=fields, files=file))
    assert video["task"] == "fl2va"
    with av.open(io.BytesIO(http.get(f"/v1/videos/{video['id']}/content").content)) as box:
        assert sum(1 for _ in box.decode(video=0)) == 107


def test_the_published_requests_with_their_files(http: httpx.Client) -> None:
    """The release's own bodies, small and short, with sample clips in place of the files they name."""
    samples = official() / "samples"
    with av.open(str(samples / "fl2va.mp4")) as box:
        frame = next(box.decode(video=0)).to_image()
    first = io.BytesIO()
    frame.save(first, "png")
    given = {
        "first_frame.png": first.getvalue(),
        "reference_video.mp4": (samples / "ref2va.mp4").read_bytes(),
        "reference_audio.mp3": (samples / "fl2va.mp4").read_bytes(),  # its sound
    }
    replies = []
    for task in ("t2va", "fl2va", "ref2va"):
        body = json.loads((official() / "requests" / f"{task}.json").read_text())
        body["target"] |= {"short_edge": 64, "duration_seconds": 4}
        body["num_inference_steps"] = 1
        files: list[Any] = [("request", (None, json.dumps(body)))]
        files += [("file", (c["uri"], given[c["uri"]])) for c in body["conditions"]]
        replies.append((body, http.post("/v1/videos", files=files)))
    for body, reply in replies:
        video = finish(http, reply)
        assert video["task"] == body["task"] and video["prompt"] == body["prompt"]
        assert video["size"] == "128x64" and video["plan"]["frames"] == 107
        assert (video["plan"]["rows"]["conditions"] > 0) == bool(body["conditions"])
        with av.open(io.BytesIO(http.get(f"/v1/videos/{video['id']}/content").content)) as box:
            assert (box.streams.video[0].width, box.streams.video[0].height) == (128, 64)
            assert box.streams.audio[0].channels == 2


def test_cancel_within_a_step(http: httpx.Client) -> None:
    body = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 300}
    video = http.post("/v1/videos", json=body).json()
    until(lambda: http.get(f"/v1/videos/{video['id']}").json()["stage"] == "denoise")
    http.post(f"/v1/videos/{video['id']}/cancel")
    began = time.monotonic()
    until(lambda: http.get(f"/v1/videos/{video['id']}").json()["status"] == "cancelled", 10)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--partition", "all"], 2, "--partition: 'all' is not usable"),
        (["--allow-folder", "/no/such"], 2, "an existing folder"),
        (["--model", "/no/such"], 2, "'/no/such' is no folder, no hub id (owner/name) and not demo"),
        (["--model", "/tmp"], 2, "is not a MiniMax-H3 checkpoint"),
        (["--keys", "/no/such"], 1, "cannot be read"),
        (["--port", "99999"], 1, "cannot listen"),
        (["--data", "/dev/null/x"], 1, "cannot be written"),
    ],
)
def test_a_wrong_start_is_one_line(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("h3serve.service.http.server.start_logs", lambda: None)
    assert run(["serve", "--port", "0", *arguments]) == code
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_keys_are_printed_once(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "keys.json"
    assert run(["keys", "ann", "--file", str(file)]) == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text() and hash_key(key) in file.read_text()
    assert run(["keys", "ann", "--file", str(file)]) == 1


@pytest.mark.parametrize("alias", ["sora-2", "sora-2=other", "=demo", "sora-2="])
def test_an_alias_names_the_served_model(alias: str, tmp_path: Path, capsys: Any) -> None:
    assert run(["serve", "--model", "demo", "--port", "0", "--data", str(tmp_path / "d"), "--model-alias", alias]) == 2
    assert capsys.readouterr().err.startswith("h3serve: --model-alias: ") and list(tmp_path.iterdir()) == []


def test_an_alias_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("h3serve.service.http.server.serve", seen.append)
    assert run(["serve", "--model", "demo", "--model-alias", "sora-2=demo", "--model-alias", "sora=demo"]) == 0
    assert seen[0].aliases == ("sora-2", "sora") and seen[0].model_name == "demo"
