import time

import pytest
from sqlalchemy import update

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.database import jobs
from h3serve.service.jobs.janitor import expire
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.retry import settle
from h3serve.service.service_settings import Retention
from tests.service.make import put, take, whole_attempt


def done(store: JobStore, folder: DataFolder, *, age_s: float = 0, content: bytes = b"film") -> Job:
    put(store)
    job = take(store)
    files = whole_attempt(folder, job, content)["files"]
    settle(store, folder, job, Outcome(State.COMPLETED, files=files))  # type: ignore[arg-type]
    with store.writing() as connection:
        old = update(jobs).where(jobs.c.id == job.id).values(finished_at=time.time() - age_s)
        connection.execute(old)
    return job


def state(store: JobStore, job: Job) -> State | None:
    found = store.get(job.id)
    return found.state if found else None


def test_by_age(folder: DataFolder, store: JobStore) -> None:
    old, young = done(store, folder, age_s=100), done(store, folder)
    assert expire(store, folder, Retention(files_s=50)) == [old.id]
    assert state(store, old) is State.EXPIRED and state(store, young) is State.COMPLETED
    assert not folder.job(old.id).exists() and folder.job(young.id).exists()


def test_by_bytes_the_oldest_go_first(folder: DataFolder, store: JobStore) -> None:
    made = [done(store, folder, age_s=age, content=b"x" * 10_000) for age in (30, 20, 10)]
    expire(store, folder, Retention(files_s=None, files_bytes=21_000))
    assert [state(store, job) for job in made] == ["expired", "completed", "completed"]


def test_records_are_forgotten_in_the_end(folder: DataFolder, store: JobStore) -> None:
    job = done(store, folder, age_s=100)
    waiting = put(store)
    rule = Retention(files_s=50, records_s=80)
    expire(store, folder, rule)
    assert state(store, job) is None
    assert store.ids() == {waiting.id}


def test_without_bounds_nothing_goes(folder: DataFolder, store: JobStore) -> None:
    done(store, folder, age_s=10**9)
    assert expire(store, folder, Retention(None, None, None)) == []


def ended(store: JobStore, folder: DataFolder, end: State, *, age_s: float, inputs: int) -> Job:
    """A job with inputs that ended so."""
    job = done(store, folder, age_s=age_s) if end is State.COMPLETED else put(store)
    if end is State.CANCELLED:
        store.request_cancel(job.id)
    elif end is State.FAILED:
        take(store)
        settle(store, folder, job, Outcome(State.FAILED, "internal", "no"))
    folder.inputs(job.id).mkdir(parents=True)
    (folder.inputs(job.id) / "00.png").write_bytes(b"p" * inputs)
    with store.writing() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job.id).values(finished_at=time.time() - age_s))
    return job


ENDS = (State.COMPLETED, State.FAILED, State.CANCELLED)


@pytest.mark.parametrize("end", ENDS)
def test_records_are_forgotten_however_the_job_ended(folder: DataFolder, store: JobStore, end: State) -> None:
    """One of a completed job only after its files went: until then they can be fetched."""
    old, young = (ended(store, folder, end, age_s=age, inputs=5) for age in (100, 60))
    expire(store, folder, Retention(files_s=50, records_s=80))
    assert state(store, old) is None
    assert state(store, young) is (State.EXPIRED if end is State.COMPLETED else end)


@pytest.mark.parametrize("end", ENDS)
def test_inputs_go_by_age_however_the_job_ended(folder: DataFolder, store: JobStore, end: State) -> None:
    old = ended(store, folder, end, age_s=100, inputs=5)
    young = ended(store, folder, end, age_s=0, inputs=5)
    assert expire(store, folder, Retention(files_s=50)) == [old.id]
    assert not folder.job(old.id).exists() and folder.job(young.id).exists()
    assert state(store, old) is (State.EXPIRED if end is State.COMPLETED else end)
    assert expire(store, folder, Retention(files_s=50)) == []  # once


def test_inputs_count_against_the_bytes(folder: DataFolder, store: JobStore) -> None:
    """Newest first 10,000 (failed), 10,000 (cancelled), 10,000 and a result of some 200 (completed)."""
    kept = [
        ended(store, folder, end, age_s=age, inputs=10_000) for end, age in ((State.FAILED, 1), (State.CANCELLED, 2))
    ]
    last = ended(store, folder, State.COMPLETED, age_s=3, inputs=10_000)
    waiting = put(store)
    folder.inputs(waiting.id).mkdir(parents=True)
    (folder.inputs(waiting.id) / "00.png").write_bytes(b"p" * 10**6)  # what waits is needed
    assert expire(store, folder, Retention(files_s=None, files_bytes=31_000)) == []
    assert expire(store, folder, Retention(files_s=None, files_bytes=30_000)) == [last.id]
    assert all(folder.inputs(job.id).exists() for job in (*kept, waiting))
