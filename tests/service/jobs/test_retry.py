from pathlib import Path

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.retry import recover, settle, settle_lost
from tests.service.make import put, take, whole_attempt


def test_a_lost_job_is_retried_once_then_fails_with_the_cause(folder: DataFolder, store: JobStore) -> None:
    put(store, request={"seed": 3})
    job = take(store)
    folder.attempt(job).mkdir(parents=True)
    (folder.attempt(job) / "video.mp4.partial").write_text("half")
    after = settle_lost(store, folder, job, "the worker was killed")
    assert after is not None and after.state is State.QUEUED and after.request == {"seed": 3}
    assert not folder.attempt(job).exists()
    job = take(store)
    after = settle_lost(store, folder, job, "the worker was killed")
    assert after is not None and after.state is State.FAILED
    assert after.error == "the worker was killed; it was tried 2 times"


def test_a_job_that_was_settled_before_is_left_alone(folder: DataFolder, store: JobStore) -> None:
    """The answer of the write was lost, so it is made again; meanwhile another worker may have the job."""
    put(store)
    first = take(store)
    settle_lost(store, folder, first, "the worker was killed")
    second = take(store)
    whole_attempt(folder, second)
    after = settle_lost(store, folder, first, "the worker was killed")
    assert after == second == store.get(first.id) and folder.attempt(second).exists()


def test_whole_files_complete_a_lost_job_without_running_it_again(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    whole_attempt(folder, job)
    assert [lost.id for lost in recover(store, folder)] == [job.id]
    after = store.get(job.id)
    assert after is not None and after.state is State.COMPLETED and after.bytes == 4
    content = folder.content(after, "video")
    assert content is not None and content.read_bytes() == b"film"


def test_a_lost_job_somebody_cancelled_is_cancelled(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    whole_attempt(folder, job)
    store.request_cancel(job.id)
    recover(store, folder)
    after = store.get(job.id)
    assert after is not None and after.state is State.CANCELLED
    assert not folder.attempt(job).exists()


def test_a_lost_job_somebody_deleted_is_gone(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    whole_attempt(folder, job)
    store.delete(job.id)
    recover(store, folder)
    assert store.ids() == set()
    assert not folder.job(job.id).exists()


def test_delete_racing_with_completion_leaves_nothing(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    result = whole_attempt(folder, job)
    store.delete(job.id)  # between the worker's last step and the server hearing of it
    assert settle(store, folder, job, Outcome(State.COMPLETED, files=result["files"])) is None
    assert store.ids() == set() and not folder.job(job.id).exists()


def test_recovery_leaves_queued_jobs_and_finished_files(folder: DataFolder, store: JobStore) -> None:
    put(store)
    done = take(store)
    result = whole_attempt(folder, done)
    settle(store, folder, done, Outcome(State.COMPLETED, files=result["files"]))
    waiting = put(store)
    assert recover(store, folder) == []
    assert folder.attempt(done).exists()
    assert store.get(waiting.id) == waiting


def test_no_video_is_lost_to_a_store_that_is_new_or_older_than_the_folder(folder: DataFolder, tmp_path: Path) -> None:
    """Three jobs end; the stores that are opened afterwards know of none, of one that waits, of one that runs."""
    for number, until in enumerate(("unknown", "queued", "running")):
        store = JobStore(f"sqlite:///{tmp_path / 'now.sqlite'}{number}")
        job = put(store)
        whole_attempt(folder, take(store), content=until.encode())
        store.close()
        older = JobStore(f"sqlite:///{tmp_path / 'old.sqlite'}{number}")
        if until != "unknown":
            put(older, id=job.id)
        if until == "running":
            take(older)
        recover(older, folder)
        states = [job.state for job in older.page(owner=None, after=None, limit=9, newest_first=True)[0]]
        assert states == {"unknown": [], "queued": ["queued"], "running": ["completed"]}[until]
        older.close()
        places = [p for p in folder.root.rglob("video.mp4") if p.read_text() == until]
        assert len(places) == 1 and (until == "running") == ("set-aside" not in str(places[0]))
