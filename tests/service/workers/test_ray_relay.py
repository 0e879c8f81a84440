"""Workers on a Ray cluster of one node: the same supervisor, the same messages; what is lost comes back once."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import ServiceSettings, WorkerRules
from h3serve.service.workers import ray_relay
from h3serve.service.workers.channel import Channel, Closed
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.messages import Beat, Load, LoadFailed, Message
from h3serve.service.workers.supervisor import Supervisor
from tests.paths import ROOT
from tests.service.make import put

RULES = WorkerRules(beat_s=0.2, silent_s=30.0, stalled_s=30.0, cancel_s=10, restart_s=0.01, restart_max_s=0.1)
REPLICAS, JOBS = 3, 12


@pytest.fixture(scope="module", autouse=True)
def token() -> Iterator[None]:
    """Ray asks who connects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture(scope="module")
def cluster(token: None) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets need short paths
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.ray_cluster", folder, str(REPLICAS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    lines = iter(process.stdout.readline, "")
    address = next(line.split()[1] for line in lines if line.startswith("address"))
    try:
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def workers() -> list[int]:
    """Process ids of fake workers, wherever they run."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"-m\0tests.service.fake_worker" in (folder / "cmdline").read_bytes():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found += [int(folder.name)] if words[2] == b"tests.service.fake_worker" else []
        except OSError:
            continue
    return found


def test_all_jobs_end_once_though_a_worker_is_killed(cluster: str, tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    store = JobStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    command = (sys.executable, "-m", "h3serve.service.workers.ray_relay", cluster, "tests.service.fake_worker")
    settings = ServiceSettings("fake", devices=("cpu",) * REPLICAS, worker=RULES)
    fatal: list[str] = []
    supervisor = Supervisor(settings, Ledger(store, folder, Metrics()), on_fatal=fatal.append, command=command)
    before = set(workers())
    supervisor.start()
    try:
        jobs = [put(store, request={"prompt": "slow 0.1"}) for _ in range(JOBS)]
        for job in jobs:
            folder.accept(job.id)
        supervisor.wake()
        deadline, killed = time.monotonic() + 150, False
        while any(store.get(job.id).state is not State.COMPLETED for job in jobs):
            assert time.monotonic() < deadline and not fatal, ([store.get(j.id).state for j in jobs], fatal)
            running = [store.get(job.id) for job in jobs if store.get(job.id).state is State.IN_PROGRESS]
            if not killed and len(running) > 1 and (mine := sorted(set(workers()) - before)):
                os.kill(mine[0], signal.SIGKILL)
                killed = True
            time.sleep(0.02)
        assert killed
        attempts = sorted(store.get(job.id).attempts for job in jobs)
        assert attempts[:-1] == [1] * (JOBS - 1) and attempts[-1] in (1, 2)
    finally:
        supervisor.drain(5)
    until = time.monotonic() + 20
    while set(workers()) - before and time.monotonic() < until:
        time.sleep(0.1)
    assert not set(workers()) - before


@pytest.fixture
def service(cluster: str, tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    """Makes a running supervisor of fake workers on the cluster, with a store of its own."""
    made: list[tuple[Supervisor, JobStore]] = []

    def make(**settings: Any) -> Supervisor:
        store = JobStore(f"sqlite:///{tmp_path / 'jobs.db'}")
        ledger = Ledger(store, DataFolder(tmp_path), Metrics())
        command = (sys.executable, "-m", "h3serve.service.workers.ray_relay", cluster, "tests.service.fake_worker")
        values = ServiceSettings("fake", worker=RULES, ray=cluster, **settings)
        supervisor = Supervisor(values, ledger, on_fatal=pytest.fail, command=command)
        supervisor.start()
        made.append((supervisor, store))
        return supervisor

    yield make
    for supervisor, store in made:
        supervisor.hurry()
        store.close()


def until(look: Callable[[], Any], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def ready(supervisor: Supervisor) -> int:
    return sum(slot.is_ready for slot in supervisor.staying)


def test_replicas_come_and_go_while_the_server_runs(service: Callable[..., Supervisor]) -> None:
    supervisor, before = service(devices=("cpu",)), set(workers())
    until(lambda: ready(supervisor) == 1)
    supervisor.scale(3)
    until(lambda: ready(supervisor) == 3 and len(set(workers()) - before) == 3)
    supervisor.scale(1)
    until(lambda: len(set(workers()) - before) == 1 and ready(supervisor) == 1)


def test_a_replica_of_two_ranks_waits_for_room_for_both(service: Callable[..., Supervisor]) -> None:
    """Three CPUs hold one replica of two; the room of the one that goes is the other one's."""
    supervisor = service(devices=("cpu", "cpu"), gpus=2)
    until(lambda: ready(supervisor) == 1)
    time.sleep(3)
    first = next(slot for slot in supervisor.slots if slot.is_ready)
    assert ready(supervisor) == 1
    first.leave()
    until(lambda: not first.is_alive() and ready(supervisor) == 1)


def test_what_a_rank_needs_of_a_node() -> None:
    assert ray_relay.bundles(Load({"device": "cpu"})) == [{"CPU": 1}]
    assert ray_relay.bundles(Load({"device": "cuda", "gpus": 2})) == [{"CPU": 1, "GPU": 1}] * 2


def test_the_replica_ends_with_the_place_of_any_rank() -> None:
    class Ray:
        @staticmethod
        def wait(refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
            return [refs[-1]], refs[:-1]

        @staticmethod
        def get(ref: str) -> int:
            raise RuntimeError(f"{ref} died")

    assert ray_relay.await_end(Ray, "worker", ["second rank"]) == 1


def relay(monkeypatch: pytest.MonkeyPatch, connect: Any) -> list[Message]:
    """What a server hears of a relay whose cluster is `connect`, until the relay ends."""
    monkeypatch.setattr(ray_relay, "connect", connect)
    monkeypatch.setattr(ray_relay, "end_with_parent", lambda: None)
    monkeypatch.setattr(ray_relay, "start_logs", lambda: None)
    monkeypatch.setattr(ray_relay, "_LOOK_S", 0.05)
    ours, theirs = socket.socketpair()
    server, heard = Channel(ours), []
    server.send(Load({"device": "cpu"}))
    number = os.dup(theirs.fileno())
    assert ray_relay.main("here", "nothing", str(number)) == 1
    theirs.close()
    with suppress(Closed):
        while (message := server.receive(0.2)) is not None:
            heard.append(message)
    return heard


def test_a_cluster_that_is_not_there_is_said_and_waited_for_with_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(cluster: str) -> None:
        time.sleep(0.3)
        raise ConnectionError("nobody answers")

    *beats, last = relay(monkeypatch, connect)
    assert len(beats) > 2 and all(isinstance(beat, Beat) for beat in beats)
    assert last == LoadFailed("the Ray cluster here cannot be used: nobody answers")


def test_a_stranger_without_the_token_is_hung_up_on() -> None:
    class Busy:
        @staticmethod
        def wait(refs: list[object], timeout: float) -> tuple[list[object], list[object]]:
            return [], refs

    token = secrets.token_bytes(ray_relay.TOKEN_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger, friend = (socket.create_connection(listener.getsockname()) for _ in range(2))
        stranger.sendall(b"?" * ray_relay.TOKEN_BYTES)
        friend.sendall(token)
        channel = ray_relay.await_worker(Busy, listener, token, None)
        Channel(friend).send(Beat("x", 0.0))
        assert channel.receive(5) == Beat("x", 0.0)
        assert stranger.recv(1) == b""
