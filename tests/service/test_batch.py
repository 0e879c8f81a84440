import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.batch import Batch


class Disk:
    """Counts transactions; commits take a while and may fail."""

    def __init__(self) -> None:
        self.commits, self.fails = 0, False

    @contextmanager
    def writing(self) -> Iterator[Any]:
        yield self
        time.sleep(0.02)
        if self.fails:
            raise OSError("disk")
        self.commits += 1


def test_writes_that_arrive_together_share_a_commit() -> None:
    disk = Disk()
    batch = Batch(disk.writing)
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda n: batch.run(lambda _: n), range(100))) == list(range(100))
    assert 5 <= disk.commits <= 70  # of 100; how many meet depends on the machine


def test_a_refusal_is_the_callers_own() -> None:
    batch = Batch(Disk().writing)

    def write(number: int) -> int:
        def run(_: Any) -> int:
            if number % 2:
                raise H3Error(str(number))
            return number

        try:
            return batch.run(run)
        except H3Error as error:
            return -int(str(error))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(20))) == [-n if n % 2 else n for n in range(20)]


def test_a_commit_that_fails_is_told_to_everybody_and_the_next_works() -> None:
    disk = Disk()
    batch = Batch(disk.writing)
    disk.fails = True
    errors: list[OSError] = []

    def write() -> None:
        with pytest.raises(OSError, match="disk") as caught:
            batch.run(lambda _: 1)
        errors.append(caught.value)

    threads = [threading.Thread(target=write) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 5
    disk.fails = False
    assert batch.run(lambda _: 2) == 2
