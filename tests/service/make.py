"""Small helpers that make jobs and results."""

from h3serve.service.jobs.admission import Admission
from h3serve.service.jobs.claim import claim
from h3serve.service.jobs.data_folder import DataFolder, write_result
from h3serve.service.jobs.job import Job, NewJob, new_id
from h3serve.service.jobs.job_store import JobStore

TASKS = ("t2va", "fl2va", "ref2va")


def put(store: JobStore, **changes: object) -> Job:
    values: dict[str, object] = {"id": new_id(), "task": "t2va", "request": {}, "plan": {}}
    job, _ = store.put(NewJob(**{**values, **changes}), Admission(1000)).result()  # type: ignore[arg-type]
    return job


def take(store: JobStore) -> Job:
    job = claim(store, TASKS)
    assert job is not None
    return job


def whole_attempt(folder: DataFolder, job: Job, content: bytes = b"film") -> dict[str, object]:
    """Write what a worker leaves behind when it has finished `job`."""
    attempt = folder.attempt(job)
    attempt.mkdir(parents=True)
    (attempt / "video.mp4").write_bytes(content)
    entry = {"name": "video.mp4", "bytes": len(content), "sha256": "0" * 64, "type": "video/mp4"}
    result = {"stats": {"seconds": {"denoise": 1.0}}, "files": {"video": entry}}
    write_result(attempt, result)
    return result
