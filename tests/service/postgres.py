"""A PostgreSQL server of a test's own, which can be stopped and started again."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Postgres:
    """On a socket in a folder of its own."""

    def __init__(self, tools: Path, root: Path) -> None:
        self.tools, self.root = tools, root
        self.url = f"postgresql+psycopg://h3@/postgres?host={root}"
        self._user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        if self._user is not None:
            shutil.chown(root, self._user)

    def create(self) -> None:
        self._call("initdb", "-D", str(self.root / "data"), "-U", "h3", "-A", "trust")

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.root} -c fsync=off"
        self._control("-w", "-o", options, "-l", str(self.root / "log"), "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        self._call("pg_ctl", "-D", str(self.root / "data"), *arguments)

    def _call(self, tool: str, *arguments: str) -> None:
        command = [str(self.tools / tool), *arguments]
        subprocess.run(command, check=True, user=self._user, cwd=self.root, stdout=subprocess.DEVNULL)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server; skips where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg")
    root = Path(tempfile.mkdtemp(prefix="h3serve-pg-"))
    server = Postgres(_binaries(), root)
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(root)


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if found:
        return found[-1].parent
    if (here := shutil.which("pg_ctl")) is None:
        pytest.skip("PostgreSQL is not installed")
    return Path(here).parent
