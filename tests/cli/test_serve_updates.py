"""Weight updates over HTTP with the demo checkpoint in a real worker."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from h3serve import Generator
from h3serve.service.http.api_keys import add_key
from tests.checkpoints import write_old_and_new
from tests.cli.test_serve import H3SERVE, TARGET, finish, until

BODY = {"task": "t2va", "prompt": "rain", "target": TARGET, "num_inference_steps": 2, "seed": 3}
GAIN = "transformer.final_layer.norm.weight"
URL = "/v1/admin/weights"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    write_old_and_new(root)
    shutil.copytree(root / "new", root / "torn")
    shard = next((root / "torn" / "FL2VA" / "transformer").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    save_file({"blocks.0.attn.out_proj.lora_A.weight": torch.ones(4, 64)}, root / "adapter.safetensors")
    save_file({GAIN: torch.full((64,), 2.0)}, root / "gain.safetensors")
    save_file({GAIN: torch.full((64,), float("nan"))}, root / "nan.safetensors")
    (root / "text.safetensors").write_text("no tensors")
    return root


@pytest.fixture(scope="module")
def http(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("serve")
    key, log = add_key(folder / "keys.json", "ops", is_admin=True), folder / "log"
    places = ("--data", str(folder / "data"), "--keys", str(folder / "keys.json"), "--weights-folder", str(root))
    # A file tells which weights made it, and `expected` is of a mixture that no file would tell alike.
    options = ("--model", str(root / "old"), "--port", "0", "--device", "cpu", "--no-carry-request", *places)
    with log.open("w") as stderr:
        server = subprocess.Popen([*H3SERVE, "serve", *options], stderr=stderr)
    try:
        address = until(lambda: re.search(r"listening on (http://\S+?)\"", log.read_text()))
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=address[1], timeout=60, trust_env=False, headers=headers) as client:
            until(lambda: client.get("/ready").status_code == 200)
            yield client
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def expected(root: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The new transformer's film, with the old encoder and VAEs."""
    plain = {"device": "cpu", "carry_request": False}
    old, new = (Generator.from_pretrained(root / name, **plain).engine for name in ("old", "new"))
    mixed = replace(old, denoisers=new.denoisers, modulations=new.modulations, placements={})
    path = tmp_path_factory.mktemp("expected") / "film.mp4"
    Generator(mixed).generate(BODY, output=path)
    return path.read_bytes()


def send(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/videos", json=BODY)


def film(http: httpx.Client, reply: httpx.Response) -> bytes:
    return http.get(f"/v1/videos/{finish(http, reply)['id']}/content").content


def refusals() -> dict[str, dict[str, Any]]:
    return {
        "torn": {"source": "torn"},
        "layers of an adapter": {"source": "new", "tensors": "adapter.safetensors"},
        "NaN": {"source": "new", "tensors": "nan.safetensors"},
        "readable safetensors": {"source": "new", "tensors": "text.safetensors"},
        "not a MiniMax-H3 checkpoint": {"source": "new/FL2VA/transformer"},
    }


def test_refused_then_accepted_with_jobs_in_the_queue(http: httpx.Client, root: Path, expected: bytes) -> None:
    before = film(http, send(http))
    for why, body in refusals().items():
        reply = http.post(URL, json=body)
        error = reply.json()["error"]
        assert reply.status_code == 422 and error["code"] == "update_refused", reply.text
        assert (why in error["message"] or why == "torn") and str(root) not in error["message"]
        assert "\n" not in error["message"]
    assert film(http, send(http)) == before  # refusals left every bit as it was

    waiting = [send(http) for _ in range(3)]
    reply = http.post(URL, json={"source": "new"})
    assert reply.status_code == 200, reply.text
    (worker,) = reply.json()["workers"]
    assert worker["partition"] == "fl2va" and worker["dropped"]["slab_keys"] > 0
    films = [film(http, job) for job in waiting]
    assert set(films) <= {before, expected} and films[-1] == expected
    assert film(http, send(http)) == expected != before

    reply = http.post(URL, json={"source": "new", "tensors": "gain.safetensors"})
    assert reply.status_code == 200, reply.text
    assert film(http, send(http)) not in (before, expected)
    assert len(http.get(URL).json()["data"]) == 2
