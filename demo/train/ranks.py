"""The processes of a training run: one a GPU, or gloo on CPUs; gradients are averaged over all of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

PATIENCE = timedelta(seconds=180)  # for another rank, after which this one gives up


def start(work: Callable[..., None], ranks: int, *args: Any) -> None:
    """`work(rank, ranks, *args)` in that many processes; the first failure ends all. One rank runs right here."""
    if ranks == 1:
        work(0, 1, *args)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_member, args=(ranks, port, work, args), nprocs=ranks, start_method="spawn")


def _member(rank: int, ranks: int, port: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, f"tcp://127.0.0.1:{port}", timeout=PATIENCE, rank=rank, world_size=ranks)
    try:
        work(rank, ranks, *args)
    finally:
        dist.destroy_process_group()


def device_of(rank: int) -> torch.device:
    """The rank's GPU, or the CPU."""
    return torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


def mean_over_ranks(vector: Tensor) -> None:
    """In place; nothing to do for one rank."""
    if dist.is_initialized():
        dist.all_reduce(vector)
        vector /= dist.get_world_size()


def same_everywhere(value: float, device: torch.device) -> float:
    """The first rank's value, on all ranks."""
    if not dist.is_initialized():
        return value
    held = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(held, 0)
    return float(held)


def wait_for_all() -> None:
    """Until every rank is here."""
    if dist.is_initialized():
        dist.barrier()
