import logging
import threading
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.workers import job_ledger as module
from h3serve.service.workers.job_ledger import Ledger
from tests.service.make import put, take, whole_attempt


def test_an_end_is_written_however_long_the_database_refuses(
    folder: DataFolder, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    put(store)
    job = take(store)
    files: Any = whole_attempt(folder, job)["files"]
    finish, refusals = store.finish, ["database is locked", "database or disk is full", "disk I/O error"]

    def refuse(*arguments: Any) -> Any:
        if refusals:
            raise OperationalError("UPDATE", {}, Exception(refusals.pop()))
        return finish(*arguments)

    monkeypatch.setattr(store, "finish", refuse)
    Ledger(store, folder, Metrics()).settle(job, Outcome(State.COMPLETED, files=files))
    after = store.get(job.id)
    assert not refusals and after is not None and after.state is State.COMPLETED
    assert folder.attempt(after).exists()


def test_a_server_that_ends_stops_insisting(folder: DataFolder, store: JobStore, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise OperationalError("UPDATE", {}, Exception("database is locked"))

    put(store)
    job = take(store)
    monkeypatch.setattr(store, "finish", refuse)
    ledger = Ledger(store, folder, Metrics())
    threading.Timer(0.1, ledger.stop.set).start()
    ledger.settle(job, Outcome(State.FAILED, "x", "y"))
    row = store.get(job.id)
    assert row is not None and row.state is State.IN_PROGRESS  # the next start recovers it


def test_a_job_that_is_whole_is_not_given_back(folder: DataFolder, store: JobStore) -> None:
    """Its worker had written everything; the server stopped before it heard so."""
    put(store)
    job = take(store)
    whole_attempt(folder, job)
    Ledger(store, folder, Metrics()).give_back(job)
    after = store.get(job.id)
    assert after is not None and after.state is State.COMPLETED and after.bytes == 4
    content = folder.content(after, "video")
    assert content is not None and content.read_bytes() == b"film"


def test_a_job_that_is_half_done_is_given_back_unspent(folder: DataFolder, store: JobStore) -> None:
    put(store)
    store.requeue(take(store).id, counts=True)
    job = take(store)
    folder.attempt(job).mkdir(parents=True)
    (folder.attempt(job) / "video.mp4").write_bytes(b"film")
    Ledger(store, folder, Metrics()).give_back(job)
    after = store.get(job.id)
    assert after is not None and (after.state, after.attempts) == (State.QUEUED, 1)
    assert not folder.attempt(job).exists()


def test_a_cancelled_job_is_not_given_back(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    store.request_cancel(job.id)
    Ledger(store, folder, Metrics()).give_back(job)
    after = store.get(job.id)
    assert after is not None and after.state is State.CANCELLED


def test_one_summary_line_per_end(folder: DataFolder, store: JobStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store)
    job = take(store)
    with caplog.at_level(logging.INFO, "h3serve.jobs"):
        ledger = Ledger(store, folder, Metrics())
        ledger.settle(job, Outcome(State.FAILED, "does_not_fit", "needs 90 GiB"))
        ledger.settle(job, Outcome(State.COMPLETED))  # late: it means nothing
    lines = [record for record in caplog.records if getattr(record, "job", None) == job.id]
    assert [line.getMessage() for line in lines] == ["job failed"]
    assert vars(lines[0])["error"] == "needs 90 GiB" and vars(lines[0])["attempts"] == 1
    assert 'h3serve_failures_total{cause="does_not_fit"} 1.0' in ledger.metrics.text().decode()
