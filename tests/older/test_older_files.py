"""What the version of 5f4381b wrote opens as if today's had: a data folder, keys, a sidecar, encodings."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from h3serve.runtime.adaln.modulation_tables import TableShape, key_of
from h3serve.runtime.adaln.sidecar import Origin, SidecarFolder
from h3serve.runtime.encoding_cache import EncodingCache, digest_of
from h3serve.service.http.api_keys import KeyRing, read_keys
from h3serve.service.jobs.claim import claim
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.retry import recover
from tests.service.client import client_of, context_of

KEY = "h3-re3OFkSVu5wm-EvulLxizz_6yVif2zGuhOM2ghiEjAw"
HEADERS = {"Authorization": f"Bearer {KEY}"}
REQUEST = {
    "task": "t2va",
    "prompt": "ein Löwe",
    "target": {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4},
}
NAMES = ("completed", "expired", "failed", "cancelled", "running", "queued")
IDS = {name: f"video_{number:032x}" for number, name in enumerate(NAMES, 1)}
STATUS = {name: name for name in ("completed", "expired", "failed", "cancelled", "queued")} | {"running": "queued"}


@pytest.fixture(autouse=True)
def older(tmp_path: Path) -> Path:
    """The files, where `folder` and `store` of the service's tests look for a data folder."""
    return shutil.copytree(Path(__file__).parent / "files", tmp_path, dirs_exist_ok=True)


def test_every_job_is_as_it_was(store: JobStore) -> None:
    found, _ = store.page(owner="ann", after=None, limit=9, newest_first=False)
    assert [job.id for job in found] == list(IDS.values())
    jobs = dict(zip(NAMES, found, strict=True))
    for name, job in jobs.items():
        assert job.state == {"running": State.IN_PROGRESS}.get(name, name)
        assert (job.request, job.plan["petaflops"], job.owner, job.priority) == (REQUEST, 0.5, "ann", 2)
    assert jobs["completed"].stats == {"seconds": {"denoise": 1.5}, "total_seconds": 2.5}
    assert (jobs["completed"].bytes, jobs["expired"].bytes) == (30, 0)
    assert (jobs["failed"].error_code, jobs["failed"].error) == ("internal", "no")
    assert (jobs["running"].attempts, jobs["running"].webhook_url) == (1, "https://example.com/hook")
    assert (jobs["queued"].idempotency_key, jobs["queued"].fingerprint) == ("k", "f")


def test_the_server_goes_on_with_it(older: Path, folder: DataFolder, store: JobStore) -> None:
    """What ran when that server ended is tried again, in its place; the rest is served under the same key."""
    assert [job.id for job in recover(store, folder)] == [IDS["running"]]
    with client_of(context_of(store, folder, KeyRing(read_keys(older / "keys.json")))) as http:
        assert http.get("/v1/videos").status_code == 401
        listed: list[dict[str, Any]] = http.get("/v1/videos", headers=HEADERS).json()["data"]
        assert {video["id"]: video["status"] for video in listed} == {IDS[name]: STATUS[name] for name in NAMES}
        reply = http.get(f"/v1/videos/{IDS['completed']}/content", headers=HEADERS)
        assert reply.content == b"0123456789" * 3
        codes = {name: _content_code(http, name) for name in STATUS}
    assert codes == {"completed": 200, "expired": 410, "failed": 409, "cancelled": 409, "queued": 409, "running": 409}
    again = claim(store, ("t2va",))
    assert again is not None and (again.id, again.attempts) == (IDS["running"], 2)


def _content_code(http: TestClient, name: str) -> int:
    return http.get(f"/v1/videos/{IDS[name]}/content", headers=HEADERS).status_code


def test_a_sidecar_is_used(older: Path) -> None:
    shape = TableShape(layers=2, hidden=4)
    origin = Origin("fl2va", "0" * 32, "cpu test, torch 0", shape, torch.bfloat16)
    tables = SidecarFolder(older / "adaln", origin, limit_bytes=10**9)
    for times in ((0.0,), (0.25, 0.5)):
        key = key_of(np.array(times, np.float32))
        pages = [torch.zeros(shape.values, dtype=torch.bfloat16) for _ in times]
        sidecar = tables.find(key)
        assert sidecar is not None and tables.read(sidecar, key, pages)
        for number, page in enumerate(pages):
            written = torch.arange(shape.values) / 8 + number + 4 * len(times)
            assert torch.equal(page, written.bfloat16())


def test_an_encoding_is_not_made_again(older: Path) -> None:
    cache = EncodingCache(folder=older / "encodings")
    name = digest_of("text", torch.arange(6), "a fox")
    held = cache.get(name, lambda: pytest.fail("made again"))
    assert torch.equal(held["states"], torch.arange(12).reshape(3, 4).float())
