"""Bells ring for the jobs they listen to, once a change, and not after their stream was closed."""

import asyncio
from collections.abc import Awaitable, Callable

from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.live_progress import Bell, ProgressBoard, Snapshot
from tests.service.make import put

SOON_S = 0.05
HALF = Snapshot("denoise", 5, 10, None)


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


async def heard(bell: Bell) -> list[str]:
    return bell.take() if await bell.wait(SOON_S) else []


def test_the_latest_progress_until_the_job_stops_running(store: JobStore) -> None:
    board, job, other = ProgressBoard(), put(store), put(store)
    board.update(job, Snapshot("encode", 0, 10, None))
    board.update(job, HALF)
    board.update(other, HALF)
    assert board.get(job.id) == HALF
    board.drop(job)
    assert board.get(job.id) is None and board.get(other.id) == HALF


def test_a_bell_rings_for_its_job_and_an_owners_for_all_of_theirs(store: JobStore) -> None:
    mine, also_mine, theirs = put(store, owner="a"), put(store, owner="a"), put(store, owner="b")

    async def scene() -> None:
        board = ProgressBoard()
        with board.listen(mine.id) as one, board.listen_all("a") as all_of_a:
            for job in (theirs, also_mine, mine):
                board.update(job, HALF)
            assert await heard(one) == [mine.id]
            assert await heard(all_of_a) == [also_mine.id, mine.id]

    run(scene)


def test_a_change_wakes_once(store: JobStore) -> None:
    """A bell that stayed rung would have its stream spin."""
    job = put(store)

    async def scene() -> None:
        board = ProgressBoard()
        with board.listen(job.id) as bell:
            board.ring(job)
            assert await heard(bell) == [job.id]
            assert not await bell.wait(SOON_S)
            board.ring(job)
            assert await heard(bell) == [job.id]

    run(scene)


def test_a_closed_stream_hears_nothing_more_and_the_others_do(store: JobStore) -> None:
    job = put(store)

    async def scene() -> None:
        board = ProgressBoard()
        with board.listen(job.id) as stays:
            with board.listen(job.id) as closed:
                pass
            board.ring(job)
            assert await heard(stays) == [job.id]
            assert not await closed.wait(SOON_S)

    run(scene)


def test_a_bell_of_an_ended_event_loop_is_silent(store: JobStore) -> None:
    """Watching threads outlive the loop when the server stops; `call_soon_threadsafe` would raise in them."""

    async def bell() -> Bell:
        return Bell()

    left = asyncio.run(bell())
    left.ring(put(store).id)
    assert left.take() == []
