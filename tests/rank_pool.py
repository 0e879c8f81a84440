"""Processes that are the ranks of one replica, for tests: `pool.run(function, *arguments)`.

Forked from a server that has imported what they need and nothing else: a fork of the test's own process, with the
threads and locks that earlier tests left there, was seen to hang.
"""

import multiprocessing as mp
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import Ranks, open_store

START_S = 60
PRELOAD = ["tests.rank_pool", "h3serve.pipeline.engine", "transformers.models.qwen3_vl.modeling_qwen3_vl"]


class Pool:
    """One pipe per rank; each runs what it is told, one thing at a time."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.store, port = open_store()
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipes, self.processes = [], []
        for rank in range(shape.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, shape, port), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for rank, pipe in enumerate(self.pipes):
            assert _receive(pipe, rank, START_S) is None

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float = 30) -> list[Any]:
        """function(ranks, *arguments) on every rank; the results, or the exceptions it raised, by rank."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return [_receive(pipe, rank, timeout) for rank, pipe in enumerate(self.pipes)]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)


def _receive(pipe: Any, rank: int, timeout: float) -> Any:
    assert pipe.poll(timeout), f"rank {rank} gave no answer within {timeout} s"
    return pipe.recv()


def _serve(pipe: Any, rank: int, shape: Shape, port: int) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank, shape, port=port, device=torch.device("cpu"))
    ranks.open()
    pipe.send(None)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(ranks, *arguments)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send(answer)


@contextmanager
def pool(ulysses: int = 1, tp: int = 1) -> Iterator[Pool]:
    ranks = Pool(Shape(ulysses, tp))
    try:
        yield ranks
    finally:
        ranks.end()
