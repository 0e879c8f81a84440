"""Threads for work that may take long (media that are fetched, probed, copied), shared fairly between API keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, fail_after, to_thread

from h3serve.service.jobs.error_replies import Refusal

T = TypeVar("T")
_RETRY_S = 10


class Lanes:
    """`threads` in all, of which one key gets `of_one` at most; its further work waits for up to `patience_s`.

    A key has no more work before another's than it may have threads, however much it sends.
    """

    def __init__(self, threads: int, *, of_one: int, patience_s: float) -> None:
        self._threads, self._patience_s = CapacityLimiter(threads), patience_s
        self._lanes = defaultdict[str, CapacityLimiter](lambda: CapacityLimiter(of_one))

    async def run(self, key: str, function: Callable[[], T]) -> T:
        """What `function` returns; raises Refusal 429 when the key's own work does not let it begin in time."""
        lane = self._lanes[key]
        try:
            with fail_after(self._patience_s):
                await lane.acquire()
        except TimeoutError:
            message = "this key's earlier requests with media are still being read"
            raise Refusal(429, message, code="busy", retry_s=_RETRY_S) from None
        try:
            return await to_thread.run_sync(function, limiter=self._threads)
        finally:
            lane.release()
