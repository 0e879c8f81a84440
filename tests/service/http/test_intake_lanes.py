"""One key's slow work does not keep another's waiting."""

import threading
import time

import anyio
import pytest

from h3serve.service.http.intake_lanes import Lanes
from h3serve.service.jobs.error_replies import Refusal


def test_a_key_with_endless_work_leaves_threads_to_others() -> None:
    """Four threads, two for one key: of its twenty jobs two begin, and the other key's begins at once."""
    release, begun = threading.Event(), list[str]()

    def slow() -> None:
        begun.append("slow")
        release.wait(20)

    async def main() -> float:
        lanes = Lanes(4, of_one=2, patience_s=30)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(lanes.run, "greedy", slow)
            await anyio.sleep(0.3)
            began = time.monotonic()
            assert await lanes.run("honest", lambda: 7) == 7
            took = time.monotonic() - began
            assert begun == ["slow"] * 2
            release.set()
        return took

    assert anyio.run(main) < 5
    assert len(begun) == 20


def test_who_waits_too_long_is_told_so() -> None:
    release = threading.Event()

    async def main() -> None:
        lanes = Lanes(4, of_one=1, patience_s=0.2)
        async with anyio.create_task_group() as group:
            group.start_soon(lanes.run, "a", lambda: release.wait(20))
            await anyio.sleep(0.1)
            with pytest.raises(Refusal, match="still being read") as refused:
                await lanes.run("a", lambda: None)
            assert refused.value.http_status == 429 and refused.value.retry_s
            assert await lanes.run("b", lambda: 1) == 1
            release.set()
        assert await lanes.run("a", lambda: 2) == 2  # the refused one holds no place

    anyio.run(main)
