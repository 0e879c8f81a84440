"""Starts the other ranks of a replica on this host and notices when one is gone.

Each is a fresh interpreter that ends with this process, however that ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch._C._distributed_c10d import TCPStore

from h3serve.core.errors import WorkerError

START_S = 300.0  # importing torch on a busy host
END_S = 10.0


class RankProcesses:
    """The processes of ranks 1 to size - 1, started as `python -m module ARGUMENTS`."""

    def __init__(self, module: str, arguments: Callable[[int], Any], size: int) -> None:
        """`arguments(rank)` is handed over as JSON."""
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(arguments(rank))],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # results are the first rank's to print
            )
            for rank in range(1, size)
        ]
        self._ending = False

    def await_arrival(self, store: TCPStore) -> None:
        """Wait until every process has said `arrive`; WorkerError if one ends before, or takes too long."""
        deadline = time.monotonic() + START_S
        for rank in range(1, len(self._processes) + 1):
            while not store.check([_arrived(rank)]):
                if (lost := self.lost()) is not None:
                    raise WorkerError(f"rank {lost} ended while it started")
                if time.monotonic() > deadline:
                    raise WorkerError(f"rank {rank} did not start within {START_S:g} s")
                time.sleep(0.05)

    def watch(self, on_lost: Callable[[int], None]) -> None:
        """Call `on_lost(rank)`, from a thread, if a process ends before `end`."""
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(target=self._await_end, args=(rank, process, on_lost), daemon=True).start()

    def lost(self) -> int | None:
        """The lowest rank whose process is gone."""
        ended = [rank for rank, process in enumerate(self._processes, start=1) if process.poll() is not None]
        return ended[0] if ended else None

    def end(self, *, at_once: bool = False) -> None:
        """Wait for the processes, which have been told to end; kill those that do not."""
        self._ending = True
        deadline = time.monotonic() + (0 if at_once else END_S)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # a driver that hangs
                    process.wait(END_S)

    def _await_end(self, rank: int, process: subprocess.Popen[bytes], on_lost: Callable[[int], None]) -> None:
        process.wait()
        if not self._ending:
            on_lost(rank)


def arrive(store: TCPStore, rank: int) -> None:
    """Tell the first rank that this one is there."""
    store.set(_arrived(rank), "here")


def _arrived(rank: int) -> str:
    return f"arrived{rank}"
