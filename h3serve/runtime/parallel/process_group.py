"""The processes of one replica and their collectives: the one place that knows torch.distributed.

A replica has U x T ranks: T neighbours share every linear (tensor parallel), and U such groups share
the sequence (Ulysses). Ranks find each other at a TCP store whose port the operating system chose; control
messages are JSON, never pickled objects. gloo moves CPU tensors, NCCL those on GPUs.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d as c10d

from h3serve.core.errors import WorkerError
from h3serve.runtime.machine import make_current
from h3serve.runtime.parallel.parallel_layout import Shape

LOOPBACK = "127.0.0.1"
# The last resort against a rank that hangs; a rank that fails is heard of at once (together.py).
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
MEET_TIMEOUT = timedelta(minutes=10)  # ranks start together, but each loads its modules first


def open_store(address: str = LOOPBACK) -> tuple[TCPStore, int]:
    """A meeting place on a free port of `address`, and that port; lives as long as the store object."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen()
    port = listener.getsockname()[1]
    store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), timeout=MEET_TIMEOUT
    )
    return store, port


class Disconnected(WorkerError):
    """A collective ended because another rank is gone or has left it: the reason is known elsewhere."""


@contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        traceback.clear_frames(error.__traceback__)  # their locals would keep the connections open
        raise Disconnected(f"an exchange with the other ranks failed: {error}") from None


class ProcessGroup:
    """Some ranks that exchange tensors, in order of rank; `index` is the place of this one.

    Every collective waits until all of the group take part. A group of one returns what it is given.
    """

    def __init__(self, members: Sequence[int], rank: int) -> None:
        self.members = tuple(members)
        self.index = self.members.index(rank)
        self.group: dist.ProcessGroup | None = None  # renewed by Ranks.open

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.members)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the group, in x itself."""
        if self.size > 1:
            with _exchange():
                dist.all_reduce(x, group=self._connected())
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Everybody's x [n, ...], all of one shape -> [size * n, ...]."""
        if self.size == 1:
            return x
        out = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        with _exchange():  # its public name changes between torch versions
            self._connected()._allgather_base(out, x.contiguous()).wait()
        return out

    def all_to_all(self, x: Tensor) -> Tensor:
        """x [size, ...]: entry i goes to member i; entry j of the result came from member j."""
        if self.size == 1:
            return x
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        with _exchange():
            dist.all_to_all_single(out, x.contiguous(), group=self._connected())
        return out

    def broadcast(self, x: Tensor) -> Tensor:
        """The first member's x, in everybody's x."""
        if self.size > 1:
            with _exchange():
                dist.broadcast(x, self.members[0], group=self._connected())
        return x

    def _connected(self) -> dist.ProcessGroup:
        if self.group is None:
            raise Disconnected("the ranks are not connected")
        return self.group

    def gather_json(self, value: Any) -> list[Any]:
        """Everybody's JSON value, in order of rank."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor([len(own)])).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(own)] = own
        parts = self.all_gather(padded).view(self.size, -1)
        return [json.loads(bytes(part[:n].tolist())) for part, n in zip(parts, sizes, strict=True)]


class Ranks:
    """This process as one rank of a replica.

    `world`, `ulysses` and `tp` are its groups. `open` connects them; after `abort`, which makes every
    waiting collective of this process fail, `open` connects them anew.
    """

    def __init__(
        self,
        rank: int,
        shape: Shape,
        *,
        port: int,
        device: torch.device,
        address: str = LOOPBACK,
        server: TCPStore | None = None,
    ) -> None:
        """`server` is the store itself, on the rank that holds it: it has to live as long as the replica."""
        self.rank, self.shape, self.device, self.server = rank, shape, device, server
        self.address, self.port = address, port
        self.store = self.connect()
        self.world = ProcessGroup(range(shape.size), rank)
        self.tp = ProcessGroup(next(group for group in shape.tp_groups() if rank in group), rank)
        self.ulysses = ProcessGroup(next(group for group in shape.ulysses_groups() if rank in group), rank)
        self._generation = 0

    @property
    def leads(self) -> bool:
        """True for the rank that talks to the caller, writes the output and is the first to decode."""
        return self.rank == 0

    def connect(self) -> TCPStore:
        """A connection of its own to the store: one must not be shared by threads."""
        return TCPStore(self.address, self.port, is_master=False, wait_for_workers=False, timeout=MEET_TIMEOUT)

    def open(self) -> None:
        """Connect all groups; every rank has to call it, as often as the others."""
        prepare_environment(self.address)
        make_current(self.device)
        on_gpu = self.device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=c10d.PrefixStore(f"open{self._generation}", self.store),
            rank=self.rank,
            world_size=self.shape.size,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=self.device if on_gpu else None,
        )
        self._generation += 1
        self.world.group = dist.group.WORLD
        for own, of_all in ((self.tp, self.shape.tp_groups()), (self.ulysses, self.shape.ulysses_groups())):
            groups = [dist.new_group(members, timeout=COLLECTIVE_TIMEOUT) for members in of_all]
            own.group = groups[of_all.index(list(own.members))]

    def abort(self) -> None:
        """End every collective of this process and its group mates, waiting ones with an error; from any thread.

        NCCL aborts. gloo hangs up when the last reference to a group goes, and the other end notices.
        """
        self.world.group = self.tp.group = self.ulysses.group = None
        if dist.is_initialized():
            c10d._abort_process_group()

    def close(self) -> None:
        """Leave in peace: no collective is under way."""
        if dist.is_initialized():
            dist.destroy_process_group()


def prepare_environment(address: str) -> None:
    """What NCCL and gloo read from the environment; what a person has set there stays."""
    for name, value in own_environment(address).items():
        os.environ.setdefault(name, value)


def own_environment(address: str) -> dict[str, str]:
    """On one host nothing listens on an outer interface. NCCL's own watchdog would end the process where
    `Ranks.abort` only ends a request.
    """
    settings = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    if address == LOOPBACK:
        settings |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return settings


def host_identity() -> str:
    """Equal for processes that see each other under /proc: one boot of one kernel, one PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # shares with nobody
