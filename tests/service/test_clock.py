"""A clock that is set back gives no negative seconds, and no key is passed over for it."""

import time

import pytest

from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.seconds_estimate import seconds_for
from h3serve.service.workers.job_ledger import waited_s
from tests.service.make import put, take

DAY_S = 86_400


def set_back(monkeypatch: pytest.MonkeyPatch, seconds: float = DAY_S) -> None:
    monkeypatch.setattr(time, "time", lambda now=time.time: now() - seconds)


def test_the_times_of_a_job_stay_in_order(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    created, started = put(store), put(store, priority=1)
    assert take(store).id == started.id
    set_back(monkeypatch)
    done = store.finish(started.id, Outcome(State.COMPLETED, files={}))
    assert done is not None and done.started_at is not None and done.finished_at is not None
    assert done.created_at <= done.started_at <= done.finished_at
    job = take(store)
    assert job.id == created.id and job.started_at is not None and job.started_at >= job.created_at
    assert waited_s(job) == 0.0


def test_a_cancelled_job_ends_after_it_was_created(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    job = put(store)
    set_back(monkeypatch)
    after = store.request_cancel(job.id)
    assert after is not None and after.finished_at is not None and after.finished_at >= after.created_at


def test_a_job_that_took_no_time_by_the_clock_says_nothing_of_the_next(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, plan={"petaflops": 2.0})
    job = take(store)
    set_back(monkeypatch)
    store.finish(job.id, Outcome(State.COMPLETED, files={}))
    assert store.recent_work() == [] and seconds_for(store, {"petaflops": 4.0}) is None


def test_keys_take_turns_all_the_same(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in ("ann", "bob", "cat"):
        for _ in range(3):
            put(store, owner=owner)
    first = [take(store).owner for _ in range(2)]
    set_back(monkeypatch)
    for job in store.in_state(State.IN_PROGRESS):
        store.finish(job.id, Outcome(State.COMPLETED, files={}))
    later = []
    while store.in_state(State.QUEUED):
        later.append(take(store))
        store.finish(later[-1].id, Outcome(State.COMPLETED, files={}))
    assert first + [job.owner for job in later] == ["ann", "bob", "cat"] * 3
