"""One server owns a PostgreSQL database, whatever becomes of its session or the database itself."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, delete, text
from sqlalchemy.exc import OperationalError

from h3serve.core.errors import H3Error
from h3serve.service.jobs import ownership as module
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.ownership import Ownership, OwnershipWatch, Taken
from h3serve.service.jobs.retry import recover
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.workers import job_ledger as ledger_module
from h3serve.service.workers.job_ledger import Ledger
from tests.service.client import T2VA, client_of, context_of, live, wait_for
from tests.service.make import TASKS, put, take, whole_attempt
from tests.service.postgres import Postgres, postgres


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def store(database: Postgres) -> Iterator[JobStore]:
    store = JobStore(database.url)
    yield store
    store.close()
    engine = create_engine(database.url)
    with engine.begin() as connection:
        connection.execute(delete(module.facts).where(module.facts.c.name == "owner"))
        connection.execute(text("DELETE FROM jobs"))
    engine.dispose()


def owner(store: JobStore) -> Ownership:
    assert store.ownership is not None
    return store.ownership


def cut_all_connections(database: Postgres) -> None:
    """As an administrator, a firewall or a failing network does."""
    engine = create_engine(database.url)
    with engine.connect() as connection:
        others = "pid <> pg_backend_pid() AND datname = 'postgres'"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    engine.dispose()


def test_a_cut_connection_is_noticed_and_the_lock_taken_again(database: Postgres, store: JobStore) -> None:
    job = put(store)
    cut_all_connections(database)
    owner(store).look()
    assert not store.is_owned
    owner(store).look()
    assert store.is_owned and take(store).id == job.id
    with pytest.raises(H3Error, match="another server is using"):
        JobStore(database.url)


def test_a_look_does_not_take_the_lock_twice(database: Postgres, store: JobStore) -> None:
    """Else it would stay locked after it was given back once."""
    for _ in range(3):
        owner(store).look()
    engine = create_engine(database.url)
    with engine.connect() as connection:
        count = connection.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"))
    engine.dispose()
    assert count == 1 and store.is_owned


def test_what_was_not_seen_for_long_is_not_held(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not answer at all: the look waits, and nobody may believe the last one."""
    assert store.is_owned
    now = time.monotonic()
    monkeypatch.setattr("h3serve.service.jobs.ownership.time.monotonic", lambda: now + 11)
    assert not store.is_owned


def test_while_the_database_is_away_no_job_is_taken_and_an_end_waits(
    database: Postgres, store: JobStore, folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_RETRY_S", 0.05)
    put(store)
    put(store)
    ledger = Ledger(store, folder, Metrics())
    job = ledger.claim(TASKS)
    assert job is not None
    whole_attempt(folder, job)
    client = client_of(context_of(store, folder))
    database.stop()
    try:
        owner(store).look()
        assert not store.is_owned and ledger.claim(TASKS) is None
        reply = client.get("/ready")
        assert reply.status_code == 503 and reply.json()["database"] is False
        for reply in (client.get("/v1/videos"), client.post("/v1/videos", json=T2VA)):
            assert reply.status_code == 503 and reply.headers["retry-after"] == "5", reply.text
        ending = threading.Thread(target=ledger.give_back, args=(job,))
        ending.start()
        ending.join(0.3)
        assert ending.is_alive()
    finally:
        database.start()
    owner(store).look()
    owner(store).look()
    ending.join(10)
    assert not ending.is_alive() and store.is_owned
    row = store.get(job.id)
    assert row is not None and row.state is State.COMPLETED
    assert client.get("/ready").json()["database"] is True and client.get("/v1/videos").status_code == 200
    after = ledger.claim(TASKS)
    assert after is not None and after.id != job.id


def test_a_server_that_lost_its_database_to_another_writes_nothing_more(
    database: Postgres, store: JobStore, folder: DataFolder, tmp_path: Path
) -> None:
    put(store)
    ledger = Ledger(store, folder, Metrics())
    job = ledger.claim(TASKS)
    assert job is not None
    cut_all_connections(database)
    second = JobStore(database.url)  # before the first has looked again
    try:
        elsewhere = DataFolder(tmp_path / "second")
        elsewhere.open()
        recover(second, elsewhere)
        assert store.is_owned  # it does not know yet; its writes are refused all the same
        for write in (
            lambda: take(store),
            lambda: store.finish(job.id, Outcome(State.FAILED, "x", "y")),
            lambda: store.request_cancel(job.id),
            lambda: store.delete(job.id),
            lambda: put(store),
        ):
            with pytest.raises(Taken):
                write()
        assert ledger.claim(TASKS) is None
        ledger.settle(job, Outcome(State.COMPLETED, files={}))
        ledger.lost(job, "its worker was killed")
        ledger.give_back(job)
        row = second.get(job.id)
        assert row is not None and (row.state, row.attempts) == (State.QUEUED, 1)
        told: list[str] = []
        watch = OwnershipWatch(owner(store), told.append, every_s=0.01)
        watch.start()
        watch.join(10)
        assert told == ["another server has taken over the job database"] and not store.is_owned
        assert take(second).id == job.id and second.is_owned
        elsewhere.close()
    finally:
        second.close()


def test_a_server_that_was_replaced_and_left_again_is_not_the_owner(database: Postgres, store: JobStore) -> None:
    """What it knows of running jobs is old, though the lock is free."""
    cut_all_connections(database)
    JobStore(database.url).close()
    owner(store).look()  # finds its session dead
    with pytest.raises(Taken):
        owner(store).look()


def test_a_claim_whose_answer_was_lost_is_not_stranded(
    store: JobStore, folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_RETRY_S", 0.01)
    first, second = put(store), put(store)
    ledger, answers = Ledger(store, folder, Metrics()), [True, False]

    def claim(*arguments: object) -> Job | None:
        job = claimed(*arguments)  # type: ignore[arg-type]
        if not answers.pop():
            raise OperationalError("COMMIT", {}, Exception("the connection was closed"))
        return job

    claimed = ledger_module.claim
    monkeypatch.setattr(ledger_module, "claim", claim)
    job = ledger.claim(TASKS)
    assert job is not None and (job.id, job.attempts) == (first.id, 1)
    assert [row.id for row in store.in_state(State.QUEUED)] == [second.id]


def test_a_restarted_database_costs_a_running_server_no_job(database: Postgres, tmp_path: Path) -> None:
    with live(tmp_path / "data", database=database.url) as server, server.client() as http:
        wait_for(lambda: http.get("/ready").status_code == 200)
        jobs = [http.post("/v1/videos", json={**T2VA, "prompt": "slow 0.4"}).json()["id"] for _ in range(3)]
        wait_for(lambda: "worker starts" in str(server.log) and http.get(f"/v1/videos/{jobs[0]}").json()["started_at"])
        database.stop()
        wait_for(lambda: http.get("/ready").status_code == 503)
        assert http.get("/v1/videos").status_code == 503
        time.sleep(2)  # the running job ends meanwhile
        database.start()
        wait_for(lambda: http.get("/ready").status_code == 200)
        for job in jobs:
            wait_for(lambda job=job: http.get(f"/v1/videos/{job}").json().get("status") == "completed")
            assert http.get(f"/v1/videos/{job}").json()["attempts"] == 1
        ends = [entry["job"] for entry in server.log if entry["message"] == "job completed"]
        assert sorted(ends) == sorted(jobs)
