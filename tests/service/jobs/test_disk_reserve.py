"""A full disk: what ends or removes a job is written all the same, and gives room back."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from h3serve.service.jobs.data_folder import DataFolder, Reserve
from h3serve.service.jobs.janitor import Janitor
from h3serve.service.jobs.job import Outcome, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import Retention
from tests.service.client import T2VA, client_of, context_of
from tests.service.make import put, take, whole_attempt

MIB = 2**20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def full(small: Path) -> Iterator[tuple[DataFolder, JobStore]]:
    """Jobs in every state on a disk without a free byte."""
    folder = DataFolder(small / "data")
    folder.open()
    store = JobStore(folder.default_url, on_full=folder.reserve.release)
    for end in (State.COMPLETED, State.FAILED):
        put(store)
        job = take(store)
        files = whole_attempt(folder, job, b"f" * MIB)["files"] if end is State.COMPLETED else None
        store.finish(job.id, Outcome(end, files=files))  # type: ignore[arg-type]
    put(store)
    take(store)
    put(store)
    folder.reserve.take()
    fill(small)
    yield folder, store
    store.close()
    folder.close()


def fill(disk: Path) -> None:
    """Write until nothing more can be, in ever smaller steps."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC


def in_state(store: JobStore, state: State) -> str:
    return store.in_state(state)[0].id


def test_on_a_full_disk_jobs_are_ended_and_removed_and_none_is_taken(full: tuple[DataFolder, JobStore]) -> None:
    folder, store = full
    http = client_of(context_of(store, folder))
    refused = http.post("/v1/videos", json=T2VA)
    assert refused.status_code == 507, refused.text
    assert (folder.root / "reserve").exists()  # a new job does not use it up
    film = in_state(store, State.COMPLETED)
    assert http.delete(f"/v1/videos/{film}").status_code == 200
    assert not folder.job(film).exists() and os.statvfs(folder.root).f_bavail * 4096 > MIB // 2
    folder.reserve.take()
    fill(folder.root.parent)
    for state in (State.QUEUED, State.IN_PROGRESS):
        assert http.post(f"/v1/videos/{in_state(store, state)}/cancel").status_code == 200


def test_on_a_full_disk_retention_goes_on(full: tuple[DataFolder, JobStore]) -> None:
    folder, store = full
    film = in_state(store, State.COMPLETED)
    Janitor(store, folder, Retention(files_s=0.0), every_s=60)._expire()
    assert store.get(film).state is State.EXPIRED and not folder.job(film).exists()  # type: ignore[union-attr]


def test_on_a_full_disk_the_end_of_a_job_is_written(full: tuple[DataFolder, JobStore]) -> None:
    _, store = full
    running = in_state(store, State.IN_PROGRESS)
    after = store.finish(running, Outcome(State.FAILED, "disk_full", "no room"))
    assert after is not None and after.state is State.FAILED


def test_the_reserve_is_taken_once_given_once_and_taken_again_with_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1024 * MIB
    disk = lambda _path: type("Usage", (), {"total": 1000 * MIB, "free": free})  # noqa: E731
    monkeypatch.setattr("h3serve.service.jobs.data_folder.shutil.disk_usage", disk)
    reserve = Reserve(tmp_path / "reserve")
    reserve.take()
    reserve.take()
    assert (tmp_path / "reserve").stat().st_size == 20 * MIB  # a fiftieth
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 20 * MIB  # and really taken
    assert reserve.release() and not reserve.release()
    free = 79 * MIB
    reserve.take()
    assert list(tmp_path.iterdir()) == []
    free = 80 * MIB
    reserve.take()
    assert [p.name for p in tmp_path.iterdir()] == ["reserve"]


@pytest.mark.parametrize(("message", "helps"), [("database or disk is full", True), ("database is locked", False)])
def test_only_a_full_disk_uses_it(folder: DataFolder, message: str, helps: bool) -> None:
    made_room: list[bool] = []
    store = JobStore(folder.default_url, on_full=lambda: made_room.append(True) or len(made_room) == 1)
    job, real = put(store), store.writing
    failures = iter([OperationalError("x", {}, Exception(message))])

    def writing() -> object:
        for failure in failures:
            raise failure
        return real()

    store.writing = writing  # type: ignore[assignment, method-assign]
    if helps:
        assert store.delete(job.id)
    else:
        with pytest.raises(OperationalError):
            store.delete(job.id)
    assert bool(made_room) is helps
    store.close()
