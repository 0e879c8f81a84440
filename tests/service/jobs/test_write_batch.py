import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.jobs.write_batch import Batch


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
        assert list(pool.map(lambda n: batch.submit(lambda _: n).result(), range(100))) == list(range(100))
    assert 5 <= disk.commits <= 70  # of 100; how many meet depends on the machine


def test_a_refusal_is_the_callers_own() -> None:
    batch = Batch(Disk().writing)

    def write(number: int) -> int:
        def run(_: Any) -> int:
            if number % 2:
                raise H3Error(str(number))
            return number

        try:
            return batch.submit(run).result()
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
            batch.submit(lambda _: 1).result()
        errors.append(caught.value)

    threads = [threading.Thread(target=write) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 5
    disk.fails = False
    assert batch.submit(lambda _: 2).result() == 2


def test_who_no_longer_waits_stops_nobody_else() -> None:
    batch, begun, go = Batch(Disk().writing), threading.Event(), threading.Event()

    def slow(_: Any) -> int:
        begun.set()
        go.wait(10)
        return 1

    first = batch.submit(slow)
    begun.wait(10)
    second, third = (batch.submit(write) for write in (lambda _: 2, lambda _: 3))
    assert second.cancel() and not first.cancel()  # what runs is finished and told
    go.set()
    assert (first.result(10), third.result(10)) == (1, 3)


def test_closing_finishes_what_waits() -> None:
    batch = Batch(Disk().writing)
    made = [batch.submit(lambda _: 1) for _ in range(5)]
    batch.close()
    assert [future.result(0) for future in made] == [1] * 5 and not batch.is_alive()
