"""What becomes of a running job whose worker or server vanished, or that was left half done."""

from __future__ import annotations

from h3serve.service.jobs.data_folder import DataFolder, read_result
from h3serve.service.jobs.job import Job, Outcome, State
from h3serve.service.jobs.job_store import JobStore

MAX_ATTEMPTS = 2


def settle_lost(store: JobStore, folder: DataFolder, job: Job, cause: str, *, counts: bool = True) -> Job | None:
    """Decide the fate of a lost job: whole files complete it, else one retry, else it fails.

    `cause` is the plain reason; without `counts` it was taken from its worker, and the attempt is not spent. Returns
    the job as it now stands, or None when it is gone.
    """
    row = store.row(job.id)
    if row is None or row.state is not State.IN_PROGRESS or row.attempts != job.attempts:
        return row  # settled before, by a write whose answer was lost
    job = row
    if job.cancel_requested:
        return settle(store, folder, job, Outcome(State.CANCELLED))
    result = read_result(folder.attempt(job))
    if result is not None:
        outcome = Outcome(State.COMPLETED, stats=result["stats"], files=result["files"])
        return settle(store, folder, job, outcome)
    if not counts or job.attempts < MAX_ATTEMPTS:
        folder.drop_attempts(job.id)
        if (queued := store.requeue(job.id, counts=counts)) is not None:
            return queued
    message = f"{cause}; it was tried {job.attempts} times"
    return settle(store, folder, job, Outcome(State.FAILED, "worker_lost", message))


def settle(store: JobStore, folder: DataFolder, job: Job, outcome: Outcome) -> Job | None:
    """Write the final state, then remove what that state does not keep."""
    after = store.finish(job.id, outcome)
    if after is not None and after.deleted:
        store.delete(job.id)
        folder.remove(job.id)
        return None
    if after is not None:
        done = after.state is State.COMPLETED
        folder.drop_attempts(job.id, keep=folder.attempt(after) if done else None)
    return after


def recover(store: JobStore, folder: DataFolder) -> list[Job]:
    """At start: settle what a crash left running, set aside files nobody owns; returns those jobs."""
    lost = store.in_state(State.IN_PROGRESS)
    for job in (*lost, *store.in_state(State.QUEUED)):
        folder.spare_whole(job)
    for job in lost:
        settle_lost(store, folder, job, "the server stopped while the job ran")
    folder.sweep(store.ids())
    for job in store.in_state(State.QUEUED, State.FAILED, State.CANCELLED):
        folder.drop_attempts(job.id)
    for job in store.in_state(State.EXPIRED):
        folder.remove(job.id)
    return lost
