"""Kill servers and workers at random moments while jobs come in, then look at what is left.

Server and workers have more than 1,024 files open, and a killed worker takes up to 1.6 s to end, of which the server
waits a quarter at once.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.service.client import T2VA, LiveServer, live
from tests.service.workers.test_worker_process import is_alive

FINAL = ("completed", "failed", "cancelled")
SEEDS = 5


@dataclass
class Chaos:
    """One run: `jobs` are sent with idempotency keys while `kills` happen, `rng` decides when."""

    data: Path
    jobs: int
    kills: int
    rng: random.Random
    server: LiveServer = field(init=False)
    made: dict[int, str] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)
    done_lines: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """Returns the figures; raises AssertionError when a promise was broken."""
        undisturbed = self._undisturbed()
        self._start()
        sender = threading.Thread(target=self._send_all)
        sender.start()
        for _ in range(self.kills):
            self._kill_something()
        sender.join()
        videos = self._wait_for_the_end()
        self._stop()
        return self._judge(videos, undisturbed)

    def _undisturbed(self) -> dict[int, str]:
        """seed -> hash of the film, from a server nobody touches."""
        with live(self.data.with_name("undisturbed")) as server, server.client() as http:
            ids = {seed: http.post("/v1/videos", json=body(seed)).json()["id"] for seed in range(SEEDS)}
            ended = {seed: finish(http, video) for seed, video in ids.items()}
        return {seed: video["files"]["video"]["sha256"] for seed, video in ended.items()}

    def _start(self) -> None:
        rules = {"beat_s": 0.2, "silent_s": 20.0, "restart_s": 0.05, "restart_max_s": 0.2}
        self.server = LiveServer(
            self.data, worker=rules, max_queued=10 * self.jobs, model="many files", descriptors=1100, slow_death=1.6
        )

    def _stop(self) -> None:
        self.server.end()
        self._read_log()

    def _read_log(self) -> None:
        for entry in self.server.log:
            if entry["message"] == "worker starts":
                self.pids.add(entry["pid"])
            if entry["message"].startswith("job ") and entry["message"][4:] in FINAL:
                self.done_lines[entry["job"]] += 1

    def _kill_something(self) -> None:
        if self.rng.random() < 0.7:  # else something dies while it starts
            self._wait_until_it_works()
        time.sleep(self.rng.uniform(0.0, 0.6))
        ready = self._ready()  # a first load that dies rightly ends the server
        if ready and is_alive(ready[-1]) and self.rng.random() < 0.5:
            os.kill(ready[-1], signal.SIGKILL)
            self.killed["worker"] += 1
            return
        self.killed["server"] += 1
        self._stop()
        self._start()

    def _wait_until_it_works(self) -> None:
        """A live worker with its model loaded."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            ready = self._ready()
            if ready and is_alive(ready[-1]):
                return
            time.sleep(0.02)

    def _ready(self) -> list[int]:
        return [e["pid"] for e in self.server.log if e["message"] == "ready"]

    def _send_all(self) -> None:
        for number in range(self.jobs):
            while number not in self.made:
                try:
                    with self.server.client() as http:
                        reply = http.post(
                            "/v1/videos", json=body(number % SEEDS), headers={"Idempotency-Key": str(number)}
                        )
                    if reply.status_code == 200:
                        self.made[number] = reply.json()["id"]
                except (httpx.HTTPError, AssertionError, OSError):
                    time.sleep(0.05)

    def _wait_for_the_end(self) -> dict[str, dict[str, Any]]:
        with self.server.client() as http:
            return {video: finish(http, video, seconds=300) for video in self.made.values()}

    def _judge(self, videos: dict[str, dict[str, Any]], undisturbed: dict[int, str]) -> dict[str, Any]:
        states = Counter(video["status"] for video in videos.values())
        assert len(videos) == self.jobs and set(states) <= {"completed", "failed"}
        assert {p.name for p in (self.data / "jobs").iterdir()} <= set(videos)
        assert list((self.data / "incoming").iterdir()) == []
        for number, name in self.made.items():
            self._judge_one(self.data / "jobs" / name, videos[name], undisturbed[number % SEEDS])
        assert max(self.done_lines.values()) == 1, "a job ended twice"
        assert not any(map(is_alive, self.pids)), "a worker outlived its server"
        retried = sum(video["attempts"] == 2 for video in videos.values())
        return {"states": dict(states), "killed": dict(self.killed), "retried": retried}

    def _judge_one(self, folder: Path, video: dict[str, Any], expected: str) -> None:
        files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if video["status"] == "failed":
            assert video["error"]["code"] == "worker_lost" and video["attempts"] == 2 and files == []
            return
        attempt = f"attempt-{video['attempts']}"
        names = ("audio.m4a", "result.json", "thumbnail.jpg", "video.mp4")
        assert files == [f"{attempt}/{name}" for name in names]
        film = (folder / attempt / "video.mp4").read_bytes()
        assert hashlib.sha256(film).hexdigest() == video["files"]["video"]["sha256"] == expected


def body(seed: int) -> dict[str, Any]:
    return {**T2VA, "prompt": "slow 0.02", "seed": seed}


def finish(http: httpx.Client, video: str, seconds: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reply: dict[str, Any] = http.get(f"/v1/videos/{video}").json()
        if reply["status"] in FINAL:
            return reply
        time.sleep(0.02)
    raise AssertionError(f"{video} has no final state")
