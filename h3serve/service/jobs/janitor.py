"""The thread that tidies up from time to time: retention, the database's log, the room kept for a full disk.

Jobs that ended give up their files when those are too old, or more bytes than allowed (oldest first). Inputs count,
those of failed and cancelled jobs too: otherwise whoever sends and cancels could fill the disk.
"""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy import select

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.database import jobs
from h3serve.service.jobs.job import State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.service_settings import Retention

log = logging.getLogger("h3serve.retention")


class Janitor(threading.Thread):
    """Every `every_s` seconds until `stop` is set."""

    def __init__(self, store: JobStore, folder: DataFolder, rule: Retention, *, every_s: float) -> None:
        super().__init__(name="janitor", daemon=True)
        self.store, self.folder, self.rule, self.every_s = store, folder, rule, every_s
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(self.every_s):
            for task in (self._expire, self.store.checkpoint, self.folder.reserve.take):
                try:
                    task()
                except Exception:  # the next round may find the database free again
                    log.exception("tidying failed")

    def _expire(self) -> None:
        touched = expire(self.store, self.folder, self.rule)
        if touched:
            log.info("files given up", extra={"jobs": touched})


def expire(store: JobStore, folder: DataFolder, rule: Retention) -> list[str]:
    """Give up files beyond the bounds and forget old records; returns the ids touched."""
    now = time.time()
    touched = []
    for job_id, state in _due_files(store, folder, rule, now):
        if state is not State.COMPLETED or store.expire(job_id) is not None:
            folder.remove(job_id)
            touched.append(job_id)
    for job_id in _due_records(store, rule, now):
        if store.delete(job_id):
            folder.remove(job_id)
            touched.append(job_id)
    return touched


def _due_files(store: JobStore, folder: DataFolder, rule: Retention, now: float) -> list[tuple[str, State]]:
    ended = (State.COMPLETED, State.FAILED, State.CANCELLED)
    query = select(jobs.c.id, jobs.c.finished_at, jobs.c.state)
    query = query.where(jobs.c.state.in_(ended)).order_by(jobs.c.finished_at.desc())
    with store.engine.connect() as connection:
        rows = connection.execute(query).all()
    due, kept_bytes = [], 0
    for job_id, finished_at, state in rows:
        if not folder.job(job_id).exists() and state != State.COMPLETED:
            continue  # it has given them up
        is_old = rule.files_s is not None and finished_at < now - rule.files_s
        if rule.files_bytes is not None and not is_old:
            kept_bytes += folder.bytes_of(job_id)
        if is_old or (rule.files_bytes is not None and kept_bytes > rule.files_bytes):
            due.append((job_id, State(state)))
    return due


def _due_records(store: JobStore, rule: Retention, now: float) -> list[str]:
    if rule.records_s is None:
        return []
    forgettable = (State.EXPIRED, State.FAILED, State.CANCELLED)
    query = select(jobs.c.id).where(jobs.c.state.in_(forgettable), jobs.c.finished_at < now - rule.records_s)
    with store.engine.connect() as connection:
        return list(connection.scalars(query))
