"""How long a video will take, judged by those that were made: seconds as one H200 gave them."""

import asyncio
from collections.abc import Iterable

import pytest

from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.service.jobs.job import Json, State
from h3serve.service.jobs.seconds_estimate import Patience, seconds_for


class History:
    """The finished jobs of a store, newest first."""

    def __init__(self, jobs: Iterable[tuple[float, Json]], *, running: int = 0) -> None:
        self.jobs = [(seconds, float(plan["petaflops"])) for seconds, plan in jobs]
        self.running = running

    def recent_work(self, limit: int = 20) -> list[tuple[float, float]]:
        return self.jobs[:limit]

    def counts(self) -> dict[State, int]:
        return {State.IN_PROGRESS: self.running}


def plan(edge: int, seconds: float, steps: int = 50) -> Json:
    target = {"short_edge": edge, "duration_seconds": seconds}
    body = {"task": "t2va", "prompt": "a fox " * 50, "target": target, "num_inference_steps": steps}
    return Plan.resolve(parse_request(body)).describe()


def estimate(wanted: Json, *jobs: tuple[float, Json]) -> float | None:
    return seconds_for(History(jobs), wanted)  # type: ignore[arg-type]


FIVE, TEN, FIFTEEN = (plan(768, seconds) for seconds in (5, 10, 15))
SMALL = [(seconds, plan(64, 4, 4)) for seconds in (1.0, 1.3, 1.6)]  # four evaluations of 64 pixels


def test_small_videos_say_nothing_of_a_large_one() -> None:
    """By seconds per work they would say 26 to 44 minutes for a video that took 264 s."""
    by_rate = [seconds / small["petaflops"] * FIVE["petaflops"] / 60 for seconds, small in SMALL]
    assert all(25.9 < minutes < 44.1 for minutes in by_rate)
    assert estimate(FIVE) is None and estimate(FIVE, *SMALL) is None


def test_neither_do_they_disturb_what_a_large_one_says() -> None:
    assert estimate(FIVE, *SMALL * 40, (264.0, FIVE)) == 264.0
    assert estimate(FIVE, *SMALL, (264.0, FIVE), (66.0, plan(512, 5))) == pytest.approx(264, rel=0.15)


def test_a_longer_video_is_estimated_from_a_shorter_one() -> None:
    """50 evaluations of 32.62 s against 5.234 s were measured; attention makes them less than the work says."""
    assert estimate(FIFTEEN, (264.0, FIVE)) == pytest.approx(50 * 32.62 + 10, rel=0.15)
    assert estimate(FIVE, (1641.0, FIFTEEN)) == pytest.approx(264, rel=0.15)


def test_one_that_was_held_up_is_outvoted() -> None:
    assert estimate(FIVE, (2000.0, FIVE), (264.0, FIVE), (262.0, FIVE)) == 264.0


def test_of_many_the_nearest_count() -> None:
    assert estimate(FIVE, *[(5000.0, TEN)] * 9, *[(264.0, FIVE)] * 5) == 264.0


@pytest.mark.parametrize(
    ("jobs", "running", "workers", "seconds"),
    [
        ([(100.0, FIVE), (200.0, FIVE)], 1, 1, 150),  # one ends every 150 s
        ([(100.0, FIVE), (200.0, FIVE)], 3, 1, 50),  # three run beside each other
        ([(100.0, FIVE), (200.0, FIVE)], 0, 4, 38),  # four could
        ([(5000.0, FIVE)], 1, 1, 600),  # a client should look again after ten minutes at the latest
        ([(0.2, FIVE)], 4, 4, 1),
        ([], 0, 1, 30),  # nothing is known yet
    ],
)
def test_seconds_until_a_place_is_free(
    jobs: list[tuple[float, Json]], running: int, workers: int, seconds: int
) -> None:
    history = History(jobs, running=running)
    assert asyncio.run(Patience().seconds(history, workers)) == seconds  # type: ignore[arg-type]
