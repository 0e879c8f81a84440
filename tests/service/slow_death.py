"""A process that takes long to end once it is killed, as one does whose pinned memory is being released."""

import subprocess
import time
from collections.abc import Callable
from typing import Any


class SlowDeath(subprocess.Popen[bytes]):
    """Seems to live for some seconds after its end."""

    draw: Callable[[], float]
    _ended_at: float | None = None

    def poll(self) -> int | None:
        if super().poll() is None:
            return None
        if self._ended_at is None:
            self._ended_at = time.monotonic() + type(self).draw()
        return self.returncode if time.monotonic() > self._ended_at else None

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return code


def slowly(seconds: Callable[[], float]) -> type[Any]:
    """`SlowDeath` of `seconds()`, drawn for each process."""
    return type("SlowDeath", (SlowDeath,), {"draw": staticmethod(seconds)})
