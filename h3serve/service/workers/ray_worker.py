"""What runs on a node of a Ray cluster: a worker process like any other, whose socket leads to the server's host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

CONNECT_S = 30.0


class Host:
    """A Ray actor that holds one rank's place. The first one of a replica runs the worker, which starts the ranks."""

    def gpus(self) -> list[str]:
        """The ids of the GPUs that Ray gave this actor."""
        import ray

        return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids().get("GPU", ())]

    def hold(self) -> None:
        """Stay for as long as the replica lives."""
        threading.Event().wait()

    def run(self, module: str, address: tuple[str, int], token: bytes, gpus: Sequence[str]) -> int:
        """Start `python -m module`, connected to `address`, on the GPUs of the whole replica; returns its exit code."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        with socket.create_connection(address, CONNECT_S) as end:
            end.settimeout(None)
            end.sendall(token)
            command = [sys.executable, "-m", module, str(end.fileno())]
            process = subprocess.Popen(
                command, pass_fds=[end.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **visible}
            )
        return process.wait()
