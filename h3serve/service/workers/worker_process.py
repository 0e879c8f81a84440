"""One worker process: start it, talk to it, end it, explain its exit in plain words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from h3serve.service.workers.channel import Channel, Closed
from h3serve.service.workers.messages import Load
from h3serve.system.host_memory import oom_kills

COMMAND = (sys.executable, "-m", "h3serve.service.workers.worker")
_REAP_S = 5.0  # a killed process may need longer: for large pinned memory, or for good in a driver that hangs


class WorkerProcess:
    """A fresh interpreter running `command`, in a process group of its own.

    Start it from the thread that will watch it: the worker dies with that thread.
    """

    def __init__(self, load: Load, command: Sequence[str] = COMMAND) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                self.channel.close()
                raise
        self._oom_kills = oom_kills()
        self._why: str | None = None
        with suppress(Closed):  # it has ended already: whoever reads from it hears so
            self.channel.send(load)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_gone(self) -> bool:
        """Its process and those of its ranks have ended and hold nothing any more; asked after `end`."""
        return self._popen.poll() is not None and not lives(self._popen.pid)

    def end(self, grace_s: float = 0.0) -> str:
        """Wait `grace_s` for it to exit, then kill its group; returns why it ended."""
        if self._why is None:
            self._why = self._end(grace_s)
        return self._why

    def _end(self, grace_s: float) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(grace_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self.channel.close()
        try:
            code = self._popen.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return f"the worker was killed and had not ended {_REAP_S:g} s later"
        return explain_exit(code, killed_for_memory=oom_kills() > self._oom_kills)


def lives(group: int) -> bool:
    """A process of this group has not ended; one that has ended and that nobody asks for (a zombie) holds nothing."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def explain_exit(code: int, *, killed_for_memory: bool = False) -> str:
    """The words for an exit code as subprocess gives it (negative: a signal)."""
    why = _exit_words(code)
    return f"{why}; the kernel killed a process here because host memory ran out" if killed_for_memory else why


def _exit_words(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the worker was killed (SIGKILL)"
    if code == -signal.SIGBUS:
        return "the worker died of a bus error; shared memory (/dev/shm) may be too small"
    if code < 0:
        return f"the worker died of {signal.Signals(-code).name}"
    return f"the worker exited with code {code}"
