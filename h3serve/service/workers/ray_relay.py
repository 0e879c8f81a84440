"""Stands in, on the server's host, for a worker on some node of a Ray cluster.

It is started and spoken to like a worker (`python -m h3serve.service.workers.ray_relay CLUSTER MODULE SOCKET`), so the
supervisor knows no Ray. Ray finds a node with room for the replica, keeps it as a placement group with an actor per
rank, and says when one is lost; the worker there is the same process as without Ray. Whichever ends, the others end:
a lost worker's job goes back into the queue, and the supervisor starts another relay, which finds another place.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from h3serve.core.errors import WorkerError
from h3serve.service.json_logs import start_logs
from h3serve.service.workers.channel import Channel, Closed
from h3serve.service.workers.messages import Beat, Load, LoadFailed
from h3serve.service.workers.ray_worker import Host
from h3serve.system.parent_death import end_with_parent

log = logging.getLogger("h3serve.ray")
TOKEN_BYTES = 32
_LOOK_S = 1.0
_WAIT_S = 10  # between two questions whether there is room


def ray_command(cluster: str) -> tuple[str, ...]:
    """What the supervisor starts instead of a worker; `cluster` is an address, or auto."""
    return sys.executable, "-m", "h3serve.service.workers.ray_relay", cluster, "h3serve.service.workers.worker"


def main(cluster: str, module: str, number: str) -> int:
    """Be a worker until it or the server ends; the exit code."""
    end_with_parent()
    start_logs()
    server = Channel(socket.socket(fileno=int(number)))
    load = server.receive()
    assert isinstance(load, Load)
    with Beating(server):
        try:
            ray = connect(cluster)
        except Exception as error:
            server.send(LoadFailed(f"the Ray cluster {cluster} cannot be used: {error}"))
            return 1
        address = ray.util.get_node_ip_address()
        with socket.create_server((address, 0)) as listener:
            token = secrets.token_bytes(TOKEN_BYTES)
            actors = place(ray, load)
            gpus = [gpu for own in ray.get([actor.gpus.remote() for actor in actors]) for gpu in own]
            running = actors[0].run.remote(module, (address, listener.getsockname()[1]), token, gpus)
            worker = await_worker(ray, listener, token, running)
    worker.send(load)
    for source, target in ((server, worker), (worker, server)):
        threading.Thread(target=pump, args=(source, target), daemon=True).start()
    return await_end(ray, running, [actor.hold.remote() for actor in actors[1:]])


class Beating:
    """Inside the `with` block the server hears that this process lives, though no worker does yet."""

    def __init__(self, server: Channel) -> None:
        self._server, self._began, self._over = server, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Beating:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._server.send(Beat("waiting for a node", time.monotonic() - self._began))
            except Closed:
                os._exit(1)


def connect(cluster: str) -> Any:
    """The ray module, connected. Whatever Ray raises goes up."""
    import ray

    ray.init(address=cluster, log_to_driver=False, logging_level="warning")
    return ray


def bundles(load: Load) -> list[dict[str, int]]:
    """What each rank of a replica needs of a node: a CPU, and a GPU unless it computes on the CPU."""
    rank = {"CPU": 1} if load.settings.get("device") == "cpu" else {"CPU": 1, "GPU": 1}
    return [rank] * int(load.settings.get("gpus", 1))


def place(ray: Any, load: Load) -> list[Any]:
    """An actor per rank, on one node that has room for all; waits for such a node for as long as it takes.

    The placement group goes when this process ends.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = bundles(load)
    group = ray.util.placement_group(wanted, strategy="STRICT_PACK")
    while not group.wait(timeout_seconds=_WAIT_S):
        pass
    return [
        ray.remote(Host)
        .options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        )
        .remote()
        for number, bundle in enumerate(wanted)
    ]


def await_worker(ray: Any, listener: socket.socket, token: bytes, running: Any) -> Channel:
    """The worker's end of the line. WorkerError if the actor ends first.

    Whoever calls without the token is hung up on.
    """
    listener.settimeout(_LOOK_S)
    while True:
        try:
            end, _ = listener.accept()
        except TimeoutError:
            if ray.wait([running], timeout=0)[0]:
                raise WorkerError(f"no worker was started: {outcome(ray, running)}") from None
            continue
        if hmac.compare_digest(_read(end, TOKEN_BYTES), token):
            end.settimeout(None)
            return Channel(end)
        end.close()


def pump(source: Channel, target: Channel) -> None:
    """Hand on every message; when one side is gone, so is this process."""
    try:
        while (message := source.receive()) is not None:
            target.send(message)
    except Closed:
        time.sleep(_LOOK_S)  # the exit code, if there is one, says more
    os._exit(1)


def await_end(ray: Any, running: Any, holding: Sequence[Any] = ()) -> int:
    """Wait for the worker's exit code, or for Ray to say that its node, or the place of another rank, is lost."""
    while not (ready := ray.wait([running, *holding], timeout=_LOOK_S)[0]):
        pass
    ended = outcome(ray, ready[0])
    log.info("the worker ended", extra={"outcome": ended})
    return ended if isinstance(ended, int) else 1


def outcome(ray: Any, running: Any) -> int | str:
    """The exit code, or in words why there is none."""
    try:
        return int(ray.get(running))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _read(end: socket.socket, count: int) -> bytes:
    end.settimeout(_LOOK_S)
    try:
        return end.recv(count, socket.MSG_WAITALL)
    except OSError:
        return b""


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code if code >= 0 else 1)  # Ray's threads would hold the interpreter
