import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from h3serve.service.workers.messages import Load, Loaded
from h3serve.service.workers.worker_process import WorkerProcess, explain_exit

killpg = os.killpg
FAKE = (sys.executable, "-m", "tests.service.fake_worker")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exited with code 3"),
        (-signal.SIGKILL, "killed (SIGKILL)"),
        (-signal.SIGBUS, "/dev/shm"),
        (-signal.SIGSEGV, "SIGSEGV"),
    ],
)
def test_exits_in_words(code: int, words: str) -> None:
    assert words in explain_exit(code) and "memory ran out" not in explain_exit(code)
    told = explain_exit(code, killed_for_memory=True)
    assert words in told and "host memory ran out" in told


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_is_ended_with_its_group() -> None:
    worker = WorkerProcess(Load({"model": "fake", "partition": "fl2va"}), FAKE)
    while not isinstance(worker.channel.receive(20), Loaded):
        pass
    assert os.getpgid(worker.pid) == worker.pid
    assert "SIGKILL" in worker.end()
    assert not is_alive(worker.pid)
    assert "SIGKILL" in worker.end()  # asking again changes nothing


def test_a_worker_is_gone_when_its_last_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are processes of its group, and hold a GPU's memory each."""
    worker = WorkerProcess(Load({}), ("sh", "-c", "sleep 60 & exit 3"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, number: None if number else killpg(group, 0))  # it dies later
        assert "exited with code 3" in worker.end(20)
        assert not worker.is_gone
    killpg(worker.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while not worker.is_gone:
        assert time.monotonic() < deadline
        time.sleep(0.02)


PARENT = """
import sys, time
from h3serve.service.workers.messages import Load
from h3serve.service.workers.worker_process import WorkerProcess
from tests.service.workers.test_worker_process import FAKE
worker = WorkerProcess(Load({"model": "load slow", "partition": "fl2va"}), FAKE)
worker.channel.receive(20)
print(worker.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_its_server() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
