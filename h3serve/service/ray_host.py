"""What runs on a node of a Ray cluster: a worker process like any other, whose socket leads to the server's host."""

from __future__ import annotations

import socket
import subprocess
import sys

CONNECT_S = 30.0


class Host:
    """A Ray actor that holds a node's GPUs for one worker. It ends with the worker, and the worker with it."""

    def run(self, module: str, address: tuple[str, int], token: bytes) -> int:
        """Start `python -m module`, connected to `address`; returns its exit code."""
        with socket.create_connection(address, CONNECT_S) as end:
            end.settimeout(None)
            end.sendall(token)
            command = [sys.executable, "-m", module, str(end.fileno())]
            process = subprocess.Popen(command, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL)
        return process.wait()
