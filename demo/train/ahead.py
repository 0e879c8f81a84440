"""Results of a function of whole numbers, one after another, made ahead by forked processes.

Not by threads: beside a thread that is busy in Python, each of the main thread's some thousand short calls a step would
wait for the interpreter.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

from h3serve.system.parent_death import end_with_parent

T = TypeVar("T")
WAITING = 8  # results that are made before they are asked for

_functions: dict[int, Callable[[int], Any]] = {}  # what forked processes find


def made_ahead(function: Callable[[int], T], start: int, workers: int) -> Generator[T, None, None]:
    """function(start), function(start + 1), ... without an end; close the iterator to stop the processes."""
    if not workers:
        yield from map(function, itertools.count(start))
    key = len(_functions)
    _functions[key] = function
    # A process that outlived its parent would keep the GPU's memory.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=end_with_parent)
    waiting: deque[Future[T]] = deque()
    try:
        for number in itertools.count(start):
            waiting.append(pool.submit(_call, key, number))
            if len(waiting) > WAITING:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _call(key: int, number: int) -> Any:
    return _functions[key](number)
