"""One request on all ranks of a replica: they succeed or end together.

Failure contract:
1. What can be refused is refused before the first collective, and identically on all ranks.
2. An error on one rank (Cancelled is one) is put into the store. Every other rank sees it within a moment,
   ends the collective it may be waiting in, and raises the same error. When all have left the request
   the groups are connected anew: the replica is usable, its weights stay loaded.
3. A rank that does not leave within SETTLE_S has hung or is gone. The others raise WorkerError and
   `Ranks` is `broken`: this replica's processes have to end, and whoever started them starts new ones.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from h3serve.core.errors import WorkerError
from h3serve.runtime.parallel.process_group import Disconnected, Ranks
from h3serve.runtime.parallel.rank_errors import from_json, to_json

SETTLE_S = 10.0
LOOK_S = 0.1  # how often a rank looks for the errors of others
REASON_S = 2.0
LISTEN = timedelta(seconds=5)


class Together:
    """The requests of one replica, one at a time; every rank has one of these."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.broken = False
        self._number = 0

    def announce(self, message: Any) -> None:
        """The first rank: tell the others (JSON) what comes next."""
        self.ranks.store.set(self._key("message"), json.dumps(message))

    def listen(self) -> Any:
        """The other ranks: wait, for as long as it takes, for what comes next."""
        key = self._key("message")
        while True:
            with contextlib.suppress(dist.DistStoreError):  # nothing yet; a store that is gone is another error
                self.ranks.store.wait([key], LISTEN)
                return json.loads(self.ranks.store.get(key))

    def fail(self, error: BaseException) -> None:
        """End the running request on all ranks with this error; the first one counts."""
        told = json.dumps(to_json(error, self.ranks.rank))
        self.ranks.store.compare_set(self._key("error"), "", told)

    def lose(self, rank: int) -> None:
        """A rank's process is gone: end the running request, allow no other. From any thread."""
        self.broken = True
        told = json.dumps(to_json(WorkerError(f"rank {rank} is gone"), rank))
        self.ranks.connect().compare_set(self._key("error"), "", told)

    @contextmanager
    def request(self) -> Iterator[None]:
        """The body is one request; every rank has to enter. Raises the first error of any rank."""
        watch = _Watch(self.ranks, self._key("error"))
        own: BaseException | None = None
        try:
            yield
        except BaseException as error:
            own = error
            traceback.clear_frames(error.__traceback__)  # their locals would keep connections open
            if isinstance(error, Disconnected):
                self._await_reason()
            self.fail(error)
        watch.stop()
        if own is not None:
            self.ranks.abort()  # others may wait for this rank
        try:
            first = self._settle()
        finally:
            self._tidy()
            self._number += 1
        if first is not None:
            raise own if own is not None and to_json(own, self.ranks.rank) == first else from_json(first)

    def _await_reason(self) -> None:
        """Whoever hung up, or whoever sees that a process is gone, is about to say why."""
        until = time.monotonic() + REASON_S
        while time.monotonic() < until and not self.ranks.store.check([self._key("error")]):
            time.sleep(0.02)

    def _settle(self) -> dict[str, Any] | None:
        """Wait until all ranks have left; the first error there was."""
        store, left = self.ranks.store, self._key("left")
        store.add(left, 1)
        deadline = None
        while store.add(left, 0) < self.ranks.shape.size and not self.broken:
            if deadline is None and store.check([self._key("error")]):
                deadline = time.monotonic() + SETTLE_S
            if deadline is not None and time.monotonic() > deadline:
                self.broken = True
                raise WorkerError(f"a rank did not leave a failed request within {SETTLE_S:g} s")
            time.sleep(0.02)
        if not store.check([self._key("error")]):
            return None
        self.ranks.abort()
        if not self.broken:
            self.ranks.open()
        return json.loads(store.get(self._key("error")))

    def _tidy(self) -> None:
        """Forget the request before this one; of this one others may still be reading."""
        if self.ranks.leads:
            for what in ("message", "error", "left"):
                self.ranks.store.delete_key(self._key(what, before=1))

    def _key(self, what: str, *, before: int = 0) -> str:
        return f"request{self._number - before}/{what}"


class _Watch:
    """A thread that ends this rank's collectives once another rank has failed."""

    def __init__(self, ranks: Ranks, key: str) -> None:
        self._ranks, self._key = ranks, key
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ranks-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing is ended after this."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        store = self._ranks.connect()
        while not self._ended.wait(LOOK_S):
            if store.check([self._key]):
                self._ranks.abort()
                return
