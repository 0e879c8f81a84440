"""A process that takes long to end once it is killed, as one does whose pinned memory is being released."""

import subprocess
import time
from typing import Any


class SlowDeath(subprocess.Popen[bytes]):
    """Seems to live for `seconds` after its end."""

    seconds = 0.5
    _ended_at: float | None = None

    def poll(self) -> int | None:
        if super().poll() is None:
            return None
        self._ended_at = self._ended_at or time.monotonic()
        return self.returncode if time.monotonic() - self._ended_at > self.seconds else None

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return code


def slowly(seconds: float) -> type[Any]:
    """`SlowDeath` of that many seconds."""
    return type("SlowDeath", (SlowDeath,), {"seconds": seconds})
