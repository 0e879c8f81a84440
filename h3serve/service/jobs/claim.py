"""Who is next: highest priority, then the key that waited longest for a turn, then age."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement, Connection, case, func, select, update

from h3serve.service.jobs.database import jobs
from h3serve.service.jobs.job import Job, State, job_of
from h3serve.service.jobs.job_store import JobStore


def claim(store: JobStore, tasks: Collection[str], max_running: Mapping[str, int] | None = None) -> Job | None:
    """Take the next queued job of one of `tasks`: it is in_progress and its attempt counted.

    `max_running` bounds how many jobs of an owner may run at once. Atomic: two callers never
    receive the same job.
    """
    with store.writing() as connection:
        row_id = _next_id(connection, tasks, max_running or {}, store.turns)
        if row_id is None:
            return None
        values = {
            "state": State.IN_PROGRESS,
            "started_at": not_before(jobs.c.created_at),
            "attempts": jobs.c.attempts + 1,
        }
        query = update(jobs).where(jobs.c.id == row_id, jobs.c.state == State.QUEUED)
        if connection.execute(query.values(**values)).rowcount != 1:
            return None
        job = job_of(connection.execute(select(jobs).where(jobs.c.id == row_id)).one())
    store.turns[job.owner] = time.monotonic()
    return job


def not_before(earlier: ColumnElement[float | None]) -> ColumnElement[float]:
    """Now; the moment before it when the clock has been set back since: stored times stay in order."""
    now = time.time()
    return case((earlier > now, earlier), else_=now)


def _next_id(
    connection: Connection, tasks: Collection[str], max_running: Mapping[str, int], turns: Mapping[str, float]
) -> str | None:
    waiting = [jobs.c.state == State.QUEUED, jobs.c.task.in_(tasks)]
    # One row per owner: the highest priority it has waiting.
    fronts = select(jobs.c.owner, func.max(jobs.c.priority)).where(*waiting).group_by(jobs.c.owner)
    running = _running(connection)
    candidates = [
        (-priority, running.get(owner, 0), turns.get(owner, 0.0), _last_turn(connection, owner), owner)
        for owner, priority in connection.execute(fronts)
        if running.get(owner, 0) < max_running.get(owner, running.get(owner, 0) + 1)
    ]
    if not candidates:
        return None
    owner = min(candidates)[-1]
    query = select(jobs.c.id).where(*waiting, jobs.c.owner == owner)
    return connection.scalar(query.order_by(jobs.c.priority.desc(), jobs.c.seq).limit(1))


def _running(connection: Connection) -> dict[str, int]:
    query = select(jobs.c.owner, func.count()).where(jobs.c.state == State.IN_PROGRESS)
    return {owner: int(n) for owner, n in connection.execute(query.group_by(jobs.c.owner))}


def _last_turn(connection: Connection, owner: str) -> float:
    query = select(func.max(jobs.c.started_at)).where(jobs.c.owner == owner)
    return float(connection.scalar(query) or 0.0)
