import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from h3serve.core.errors import H3Error
from h3serve.service.jobs.admission import Admission, QueueFull
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import LEGAL, NewJob, Outcome, State, new_id
from h3serve.service.jobs.job_store import JobStore, KeyReused
from tests.service.make import put, take

DONE = Outcome(State.COMPLETED, files={"video": {"name": "v", "bytes": 7}}, stats={"a": 1})
FAILED = Outcome(State.FAILED, "internal", "no")


def test_a_job_survives_reopening(folder: DataFolder) -> None:
    first = JobStore(folder.default_url)
    job = put(first, request={"prompt": "ein Löwe"}, plan={"frames": 124}, priority=2)
    first.close()
    second = JobStore(folder.default_url)
    assert second.get(job.id) == job
    assert job.request == {"prompt": "ein Löwe"}
    second.close()


def test_sqlite_is_in_wal_mode_with_full_synchronous(store: JobStore) -> None:
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_another_schema_version_is_refused(folder: DataFolder, store: JobStore) -> None:
    with sqlite3.connect(folder.root / "jobs.sqlite") as connection:
        connection.execute("UPDATE facts SET value = '999'")
    with pytest.raises(H3Error, match="schema 999"):
        JobStore(folder.default_url)


@pytest.mark.parametrize("end", [DONE, FAILED, Outcome(State.CANCELLED)])
def test_a_final_state_is_written_once(store: JobStore, end: Outcome) -> None:
    job = put(store)
    take(store)
    after = store.finish(job.id, end)
    assert after is not None and after.state is end.state and after.is_final
    for other in (DONE, FAILED, Outcome(State.CANCELLED)):
        assert store.finish(job.id, other) is None
    assert store.requeue(job.id, counts=True) is None
    assert store.get(job.id) == after


def test_a_queued_job_cannot_complete(store: JobStore) -> None:
    assert State.COMPLETED not in LEGAL[State.QUEUED]
    assert store.finish(put(store).id, DONE) is None


def test_racing_ends_leave_exactly_one(store: JobStore) -> None:
    job = put(store)
    take(store)
    ends = [DONE, FAILED] * 8
    with ThreadPoolExecutor(8) as pool:
        won = [r for r in pool.map(lambda end: store.finish(job.id, end), ends) if r]
    assert len(won) == 1
    assert store.get(job.id) == won[0]


def test_cancel_queued_is_immediate_and_running_wins_over_completion(store: JobStore) -> None:
    queued, running = put(store), put(store, priority=1)
    take(store)
    after = store.request_cancel(queued.id)
    assert after is not None and after.state is State.CANCELLED
    after = store.request_cancel(running.id)
    assert after is not None and after.state is State.IN_PROGRESS and after.cancel_requested
    assert store.requeue(running.id, counts=False) is None
    after = store.finish(running.id, DONE)
    assert after is not None and after.state is State.CANCELLED and after.files is None
    assert store.request_cancel(running.id) == after


def test_delete_hides_a_running_job_at_once(store: JobStore) -> None:
    job = put(store)
    take(store)
    assert store.delete(job.id) is False
    assert store.get(job.id) is None
    assert store.page(owner=None, after=None, limit=5, newest_first=True) == ([], False)
    after = store.finish(job.id, DONE)
    assert after is not None and after.deleted and after.state is State.CANCELLED
    assert store.delete(job.id) is True
    assert store.ids() == set()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_webhook_is_owed_unless_nobody_wants_the_job_any_more(store: JobStore, is_deleted: bool) -> None:
    job = put(store, webhook_url="http://hooks.example/")
    take(store)
    if is_deleted:
        store.delete(job.id)
    store.finish(job.id, FAILED)
    owed = [] if is_deleted else [job.id]
    assert [found.id for found in store.owed_webhooks(time.time() + 1, 10)] == owed


@pytest.mark.parametrize(("counts", "attempts"), [(True, 1), (False, 0)])
def test_a_job_that_is_put_back_has_not_started(store: JobStore, counts: bool, attempts: int) -> None:
    job = put(store)
    assert take(store).started_at is not None
    again = store.requeue(job.id, counts=counts)
    assert again is not None and again.state is State.QUEUED
    assert again.started_at is None and again.attempts == attempts


def test_an_expired_job_has_no_bytes(store: JobStore) -> None:
    job = put(store)
    take(store)
    done = store.finish(job.id, DONE)
    assert done is not None and done.bytes == 7
    gone = store.expire(job.id)
    assert gone is not None and gone.state is State.EXPIRED and gone.bytes == 0
    assert store.expire(job.id) is None


def test_idempotency(store: JobStore) -> None:
    def send(key: str, fingerprint: str, owner: str = "") -> tuple[str, bool]:
        new = NewJob(new_id(), "t2va", {}, {}, owner, 0, key, fingerprint)
        job, is_new = store.put(new, Admission(10)).result()
        return job.id, is_new

    first, is_new = send("k", "a")
    assert is_new
    assert send("k", "a") == (first, False)
    with pytest.raises(KeyReused):
        send("k", "b")
    assert send("k", "b", owner="other")[1]
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: send("race", "x"), range(16)))
    assert len({job_id for job_id, _ in made}) == 1
    assert sum(new for _, new in made) == 1


def test_the_queue_is_bounded_and_says_whose_bound(store: JobStore) -> None:
    for _ in range(2):
        store.put(NewJob(new_id(), "t2va", {}, {}, "ann"), Admission(3, {"ann": 2})).result()
    with pytest.raises(QueueFull, match="this key already has 2"):
        store.put(NewJob(new_id(), "t2va", {}, {}, "ann"), Admission(3, {"ann": 2})).result()
    store.put(NewJob(new_id(), "t2va", {}, {}, "bob"), Admission(3, {"ann": 2})).result()
    with pytest.raises(QueueFull, match="the server already has 3"):
        store.put(NewJob(new_id(), "t2va", {}, {}, "cat"), Admission(3, {"ann": 2})).result()


def test_only_jobs_that_wait_fill_a_keys_queue(store: JobStore) -> None:
    two_each = Admission(10, keys={"ann": 2, "bob": 2})
    for _ in range(3):
        put(store, owner="ann")
        store.finish(take(store).id, DONE)
    store.check_room("ann", two_each)
    put(store, owner="ann"), put(store, owner="ann")
    with pytest.raises(QueueFull):
        store.check_room("ann", two_each)
    store.check_room("bob", two_each)


def test_the_bound_holds_under_many_writers(store: JobStore) -> None:
    def send(_: int) -> bool:
        try:
            return store.put(NewJob(new_id(), "t2va", {}, {}), Admission(10)).result()[1]
        except QueueFull:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(40))) == 10
    assert len(store.ids()) == 10


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_cover_every_job_once(store: JobStore, newest_first: bool) -> None:
    made = [put(store).id for _ in range(7)]
    seen: list[str] = []
    after, more = None, True
    while more:
        found, more = store.page(owner=None, after=after, limit=3, newest_first=newest_first)
        seen += [job.id for job in found]
        after = seen[-1]
    assert seen == (made[::-1] if newest_first else made)


@pytest.mark.parametrize(("limit", "more"), [(1, True), (2, True), (3, False), (4, False)])
def test_more_follow_only_if_they_do(store: JobStore, limit: int, more: bool) -> None:
    for _ in range(3):
        put(store)
    found, said = store.page(owner=None, after=None, limit=limit, newest_first=True)
    assert len(found) == min(limit, 3) and said is more


def test_owners_see_their_own(store: JobStore) -> None:
    mine, other = put(store, owner="ann"), put(store, owner="bob")
    assert store.get(mine.id, "ann") == mine
    assert store.get(other.id, "ann") is None
    found, _ = store.page(owner="ann", after=None, limit=9, newest_first=True)
    assert [job.id for job in found] == [mine.id]


def test_a_locked_database_is_an_error_and_nothing_is_half_written(folder: DataFolder, store: JobStore) -> None:
    with store.engine.connect() as connection:  # wait less than the default five seconds
        connection.exec_driver_sql("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(folder.root / "jobs.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        put(store)
    other.execute("ROLLBACK")
    other.close()
    assert store.ids() == set()
    put(store)
    assert len(store.ids()) == 1


def test_readers_are_not_stopped_by_a_writer(store: JobStore) -> None:
    job = put(store)
    seen: list[object] = []
    with store.writing():
        reader = threading.Thread(target=lambda: seen.append(store.get(job.id)))
        reader.start()
        reader.join(2)
    assert seen == [job]


def test_counts_name_every_state(store: JobStore) -> None:
    put(store)
    put(store)
    take(store)
    assert store.counts() == {**dict.fromkeys(State, 0), State.QUEUED: 1, State.IN_PROGRESS: 1}


def test_the_log_moves_into_the_database_while_writes_go_on(store: JobStore, folder: DataFolder) -> None:
    database = folder.root / "jobs.sqlite"
    before = database.stat().st_size
    for _ in range(20):
        put(store, request={"prompt": "x" * 4000})
    assert database.stat().st_size == before
    store.checkpoint()
    assert database.stat().st_size > before + 20 * 4000
    assert len(store.ids()) == 20
