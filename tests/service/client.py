"""An application without workers for route tests, and a whole server as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from h3serve.service.http.api_keys import KeyRing
from h3serve.service.http.app import make_app
from h3serve.service.http.context import Context
from h3serve.service.http.server import Server
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import ServiceSettings

T2VA = {"task": "t2va", "prompt": "a lion", "target": {"short_edge": 64, "duration_seconds": 4.0}, "seed": 1}


def context_of(store: JobStore, folder: DataFolder, keys: KeyRing | None = None, **settings: Any) -> Context:
    values: dict[str, Any] = {"model": "fake", "partition": "both", "allowed_hosts": ("testserver",), **settings}
    return Server(ServiceSettings(**values), store, folder, keys or KeyRing(), ["false"]).context


def client_of(context: Context) -> TestClient:
    return TestClient(make_app(context), base_url="http://testserver", raise_server_exceptions=False)


class LiveServer:
    """A server process with fake workers; `log` collects its JSON lines."""

    def __init__(self, data: Path, **settings: Any) -> None:
        values = {"model": "fake", "data": str(data), "port": 0, "partition": "both", **settings}
        self.data = data
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.serve_fake", json.dumps(values)], stderr=subprocess.PIPE, text=True
        )
        self.log: list[dict[str, Any]] = []
        self._listening = threading.Event()
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"message": line.rstrip()}
            self.log.append(entry)
            if "port" in entry:
                self.port = entry["port"]
                self._listening.set()
        self._listening.set()

    def client(self, **options: Any) -> httpx.Client:
        assert self._listening.wait(30) and self.port, self.log
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False, **options)

    def end(self) -> int:
        """Kill it if it still runs; the exit code."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait(30)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def wait_for(look: Callable[[], Any], seconds: float = 30) -> Any:
    """What `look` returns, once it is true."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
    return seen


@contextmanager
def live(data: Path, **settings: Any) -> Iterator[LiveServer]:
    server = LiveServer(data, **settings)
    try:
        yield server
    finally:
        server.end()
