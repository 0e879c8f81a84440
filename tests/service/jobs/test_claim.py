from concurrent.futures import ThreadPoolExecutor

from h3serve.service.jobs.claim import claim
from h3serve.service.jobs.job import State
from h3serve.service.jobs.job_store import JobStore
from tests.service.make import TASKS, put, take


def test_oldest_first_then_none(store: JobStore) -> None:
    made = [put(store).id for _ in range(3)]
    assert [take(store).id for _ in range(3)] == made
    assert claim(store, TASKS) is None


def test_a_claim_counts_the_attempt_and_a_retry_keeps_its_place(store: JobStore) -> None:
    first, second = put(store), put(store)
    job = take(store)
    assert (job.id, job.state, job.attempts) == (first.id, State.IN_PROGRESS, 1)
    assert job.started_at is not None
    store.requeue(job.id, counts=True)
    assert (take(store).id, take(store).id) == (first.id, second.id)
    row = store.get(first.id)
    assert row is not None and row.attempts == 2
    store.requeue(first.id, counts=False)
    row = store.get(first.id)
    assert row is not None and row.attempts == 1


def test_priority_before_age(store: JobStore) -> None:
    low, high, normal = put(store, priority=-1), put(store, priority=5), put(store)
    assert [take(store).id for _ in range(3)] == [high.id, normal.id, low.id]


def test_keys_take_turns(store: JobStore) -> None:
    for _ in range(3):
        put(store, owner="ann")
    put(store, owner="bob")
    put(store, owner="cat")
    assert [take(store).owner for _ in range(5)] == ["ann", "bob", "cat", "ann", "ann"]


def test_a_key_at_its_running_limit_is_passed_over(store: JobStore) -> None:
    put(store, owner="ann", priority=9)
    put(store, owner="ann", priority=9)
    put(store, owner="bob")
    owners = []
    while (job := claim(store, TASKS, {"ann": 1})) is not None:
        owners.append(job.owner)
    assert owners == ["ann", "bob"]


def test_only_tasks_the_worker_serves(store: JobStore) -> None:
    put(store, task="ref2va")
    mine = put(store, task="fl2va")
    job = claim(store, ("t2va", "fl2va"))
    assert job is not None and job.id == mine.id
    assert claim(store, ("t2va", "fl2va")) is None


def test_no_job_is_given_twice(store: JobStore) -> None:
    made = {put(store).id for _ in range(40)}
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: claim(store, TASKS), range(60)))
    ids = [job.id for job in taken if job is not None]
    assert len(ids) == 40 and set(ids) == made
