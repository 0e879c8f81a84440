import os
from pathlib import Path

import pytest

from h3serve.core.errors import H3Error
from h3serve.service.jobs.data_folder import DataFolder, read_result
from h3serve.service.jobs.job_store import JobStore
from tests.service.make import put, take, whole_attempt


def test_one_server_per_folder(folder: DataFolder) -> None:
    with pytest.raises(H3Error, match="another server is using"):
        DataFolder(folder.root).open()
    folder.close()
    again = DataFolder(folder.root)
    again.open()
    again.close()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(H3Error, match="cannot be written: Not a directory"):
        DataFolder(tmp_path / "file" / "data").open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(H3Error, match="cannot be written"):
        DataFolder(tmp_path / "data").open()


def test_undo_removes_only_what_open_made(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("new", "old"):
        folder = DataFolder(tmp_path / name)
        folder.open()
        folder.undo = True
        folder.close()
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_what_the_store_does_not_know_is_set_aside(
    folder: DataFolder, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    job = put(store)
    folder.incoming("video_half").mkdir()
    (folder.incoming("video_half") / "upload").write_text("x")
    for name in (job.id, "video_orphan"):
        (folder.job(name) / "attempt-1").mkdir(parents=True)
        (folder.job(name) / "attempt-1" / "video.mp4").write_bytes(b"film")
    (moved,) = folder.sweep(store.ids())
    assert (moved / "attempt-1" / "video.mp4").read_bytes() == b"film"
    assert moved.parent.parent == folder.root / "set-aside" and moved.name == "video_orphan"
    assert [record.jobs for record in caplog.records] == [["video_orphan"]]  # type: ignore[attr-defined]
    assert [p.name for p in (folder.root / "jobs").iterdir()] == [job.id]
    assert list((folder.root / "incoming").iterdir()) == []
    caplog.clear()
    assert folder.sweep(store.ids()) == [] and not caplog.records


def test_a_crash_while_a_job_is_removed_leaves_what_the_next_start_clears(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.job("video_a").mkdir()
    with monkeypatch.context() as crash:
        crash.setattr("h3serve.service.jobs.data_folder.shutil.rmtree", lambda *_args, **_more: None)
        folder.remove("video_a")
    assert folder.sweep(set()) == []
    assert [list((folder.root / name).iterdir()) for name in ("jobs", "incoming")] == [[], []]


def test_accept_moves_the_inputs(folder: DataFolder) -> None:
    folder.incoming("video_a").mkdir()
    (folder.incoming("video_a") / "00.png").write_bytes(b"p")
    folder.accept("video_a")
    assert (folder.job("video_a") / "inputs" / "00.png").read_bytes() == b"p"
    folder.accept("video_b")
    folder.remove("video_a")
    assert not folder.job("video_a").exists()


def test_an_attempt_is_whole_only_with_its_files(folder: DataFolder, store: JobStore) -> None:
    put(store)
    job = take(store)
    result = whole_attempt(folder, job)
    attempt = folder.attempt(job)
    assert read_result(attempt) == result
    (attempt / "video.mp4").write_bytes(b"fil")
    assert read_result(attempt) is None
    (attempt / "video.mp4").unlink()
    assert read_result(attempt) is None
    (attempt / "result.json").write_text("{")
    assert read_result(attempt) is None
