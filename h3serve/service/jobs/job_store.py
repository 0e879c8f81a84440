"""The job store. Every write is one transaction; a final state is written once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from h3serve.core.errors import H3Error
from h3serve.service.jobs.admission import Admission
from h3serve.service.jobs.database import is_full, jobs, open_engine
from h3serve.service.jobs.job import LEGAL, WAITING, Job, NewJob, Outcome, State, job_of
from h3serve.service.jobs.ownership import Ownership, Unowned
from h3serve.service.jobs.write_batch import Batch

T = TypeVar("T")
# Built once: building a statement costs more than running it.
_INSERT = insert(jobs)
_WAITING = select(func.count()).select_from(jobs).where(jobs.c.state == State.QUEUED)
_WAITING_BY_OWNER = select(jobs.c.owner, func.count()).where(jobs.c.state == State.QUEUED).group_by(jobs.c.owner)


Method = TypeVar("Method", bound=Callable[..., Any])


class KeyReused(H3Error):
    """An idempotency key came back with a different request."""

    http_status = 409


def _even_when_full(method: Method) -> Method:
    """Write once more when the disk was full and `on_full` made room: ends of jobs, and what frees space."""

    @wraps(method)
    def insist(self: JobStore, *args: Any, **more: Any) -> Any:
        try:
            return method(self, *args, **more)
        except OperationalError as error:
            if not is_full(error) or not self.on_full():
                raise
            return method(self, *args, **more)

    return insist  # type: ignore[return-value]


class JobStore:
    """Jobs in the database at `url`. Thread-safe; one server owns a store (see data_folder.py).

    `on_full` is asked to make room when a write that ends or removes something finds the disk full.
    """

    def __init__(self, url: str, *, on_full: Callable[[], bool] = lambda: False) -> None:
        self.engine = open_engine(url)
        self.on_full = on_full
        self.ownership = Ownership(self.engine) if self.engine.dialect.name == "postgresql" else None
        self.turns: dict[str, float] = {}  # owner -> when it last had its turn, by a clock that is never set back
        self._write_lock = threading.Lock()  # writers queue here instead of inside SQLite
        self._puts = Batch(self.writing)

    def close(self) -> None:
        self._puts.close()
        if self.ownership is not None:
            self.ownership.close()
        self.engine.dispose()

    @property
    def is_owned(self) -> bool:
        """This server may take jobs and answer."""
        return self.ownership is None or self.ownership.is_held

    def answers(self) -> bool:
        """The database can be read, and is this server's."""
        try:
            return self.is_owned and bool(self.counts())
        except SQLAlchemyError:
            return False

    def check_owned(self) -> None:
        """Raises Unowned."""
        if not self.is_owned:
            raise Unowned

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A write transaction."""
        with (
            self._write_lock,
            self.engine.connect().execution_options(write=True) as connection,
            connection.begin(),
        ):
            if self.ownership is not None:
                self.ownership.check(connection)
            yield connection

    def put(self, new: NewJob, admission: Admission) -> Future[tuple[Job, bool]]:
        """Accept a job, or find the one its idempotency key already made: (job, is_new), once it is on the disk.

        The future raises QueueFull for who is not admitted and KeyReused when the key came with another request.
        """
        return self._puts.submit(lambda connection: _put(connection, new, admission))

    def check_room(self, owner: str, admission: Admission) -> None:
        """Raises QueueFull now, before anything is uploaded; `put` decides for good."""
        with self.engine.connect() as connection:
            admission.check(owner, _waiting(connection, admission))

    def checkpoint(self) -> None:
        """Move what SQLite has in its log into the database, beside the writes that go on."""
        if self.engine.dialect.name == "sqlite":
            with self.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def recent_work(self, limit: int = 20) -> list[tuple[float, float]]:
        """(seconds running, petaflops of the plan) of the last completed jobs."""
        done = (State.COMPLETED, State.EXPIRED)
        query = select(jobs.c.started_at, jobs.c.finished_at, jobs.c.plan).where(jobs.c.state.in_(done))
        query = query.order_by(jobs.c.seq.desc()).limit(limit)
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        return [(end - begin, float(plan.get("petaflops", 0.0))) for begin, end, plan in rows if end > begin]

    def get(self, job_id: str, owner: str | None = None) -> Job | None:
        """The job, or None when there is none, it was deleted or `owner` does not own it."""
        job = self.row(job_id)
        if job is None or job.deleted or (owner is not None and job.owner != owner):
            return None
        return job

    def row(self, job_id: str) -> Job | None:
        """The job as it is, deleted or not."""
        with self.engine.connect() as connection:
            return _find(connection, job_id)

    def page(self, *, owner: str | None, after: str | None, limit: int, newest_first: bool) -> tuple[list[Job], bool]:
        """Up to `limit` jobs following the job named `after`: (jobs, whether more follow)."""
        query = select(jobs).where(jobs.c.deleted.is_(False)).limit(limit + 1)
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        query = query.order_by(jobs.c.seq.desc() if newest_first else jobs.c.seq)
        with self.engine.connect() as connection:
            if after is not None:
                seq = connection.scalar(select(jobs.c.seq).where(jobs.c.id == after))
                query = query.where(jobs.c.seq < seq if newest_first else jobs.c.seq > seq)
            found = [job_of(row) for row in connection.execute(query)]
        return found[:limit], len(found) > limit

    def in_state(self, *states: State) -> list[Job]:
        """Every job in one of `states`, oldest first, deleted ones included."""
        query = select(jobs).where(jobs.c.state.in_(states)).order_by(jobs.c.seq)
        with self.engine.connect() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def counts(self) -> dict[State, int]:
        """How many jobs are in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        with self.engine.connect() as connection:
            found = {State(state): int(n) for state, n in connection.execute(query)}
        return {state: found.get(state, 0) for state in State}

    @_even_when_full
    def finish(self, job_id: str, outcome: Outcome) -> Job | None:
        """Move to a final state; None when the job is gone or already final.

        A job whose cancellation was accepted never becomes anything but cancelled.
        """
        with self.writing() as connection:
            job = _find(connection, job_id)
            if job is None or outcome.state not in LEGAL[job.state]:
                return None
            if job.cancel_requested:
                outcome = Outcome(State.CANCELLED)
            owed = time.time() if job.webhook_url and not job.deleted else None
            stats = dict(outcome.stats or {})
            values = {
                "plan": stats.pop("plan", job.plan),  # the worker's own counts every token
                "state": outcome.state,
                "finished_at": max(time.time(), job.started_at or job.created_at),
                "error_code": outcome.error_code,
                "error": outcome.error,
                "stats": stats or None,
                "files": outcome.files,
                "bytes": outcome.bytes,
                "webhook_due_at": owed,
            }
            return _move(connection, job, values)

    @_even_when_full
    def requeue(self, job_id: str, *, counts: bool) -> Job | None:
        """Put a running job back in its place; `counts` says whether the attempt is spent.

        None when it does not run or nobody wants it any more (cancelled, deleted).
        """
        with self.writing() as connection:
            job = _find(connection, job_id)
            if job is None or job.state is not State.IN_PROGRESS or job.cancel_requested:
                return None
            attempts = job.attempts if counts else job.attempts - 1
            values = {"state": State.QUEUED, "attempts": attempts, "started_at": None}
            return _move(connection, job, values)

    @_even_when_full
    def request_cancel(self, job_id: str) -> Job | None:
        """Cancel a queued job at once and mark a running one; a final job stays as it is."""
        with self.writing() as connection:
            job = _find(connection, job_id)
            if job is None or job.state not in WAITING:
                return job
            values: dict[str, Any] = {"cancel_requested": True}
            if job.state is State.QUEUED:
                owed = time.time() if job.webhook_url and not job.deleted else None
                values |= {"state": State.CANCELLED, "finished_at": max(time.time(), job.created_at)}
                values["webhook_due_at"] = owed
            return _move(connection, job, values)

    @_even_when_full
    def delete(self, job_id: str) -> bool:
        """Take a job out of sight; True when its row and files can go now (it is not running)."""
        with self.writing() as connection:
            job = _find(connection, job_id)
            if job is None:
                return False
            if job.state is State.IN_PROGRESS:
                _move(connection, job, {"deleted": True, "cancel_requested": True})
                return False
            connection.execute(delete(jobs).where(jobs.c.id == job_id))
            return True

    @_even_when_full
    def expire(self, job_id: str) -> Job | None:
        """completed -> expired; the caller removes the files afterwards."""
        with self.writing() as connection:
            job = _find(connection, job_id)
            if job is None or job.state is not State.COMPLETED:
                return None
            return _move(connection, job, {"state": State.EXPIRED, "bytes": 0})

    def count_webhook(self, job_id: str, again_at: float) -> None:
        """Record one more try, and when the next is due unless this one settles it."""
        values = {"webhook_due_at": again_at, "webhook_tries": jobs.c.webhook_tries + 1}
        with self.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))

    def settle_webhook(self, job_id: str) -> None:
        """Nothing is owed any more."""
        with self.writing() as connection:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(webhook_due_at=None))

    def owed_webhooks(
        self, now: float, limit: int, *, not_ids: Collection[str] = (), not_owners: Collection[str] = ()
    ) -> list[Job]:
        """Jobs whose delivery is due, the longest due first, but for the ids and owners named."""
        query = select(jobs).where(jobs.c.webhook_due_at <= now).order_by(jobs.c.webhook_due_at)
        query = query.where(jobs.c.id.not_in(not_ids), jobs.c.owner.not_in(not_owners))
        with self.engine.connect() as connection:
            return [job_of(row) for row in connection.execute(query.limit(limit))]

    def ids(self) -> set[str]:
        """The id of every row."""
        with self.engine.connect() as connection:
            return set(connection.scalars(select(jobs.c.id)))


def _put(connection: Connection, new: NewJob, admission: Admission) -> tuple[Job, bool]:
    if (earlier := _same_key(connection, new)) is not None:
        return earlier, False
    admission.check(new.owner, _waiting(connection, admission))
    job = Job(**vars(new), created_at=time.time())
    values = {name: value for name, value in vars(job).items() if name != "seq"}
    key = connection.execute(_INSERT, values).inserted_primary_key
    return replace(job, seq=_need(key)[0]), True


def _find(connection: Connection, job_id: str) -> Job | None:
    row: Row[Any] | None = connection.execute(select(jobs).where(jobs.c.id == job_id)).first()
    return None if row is None else job_of(row)


def _need(value: T | None) -> T:
    assert value is not None
    return value


def _move(connection: Connection, job: Job, values: dict[str, Any]) -> Job | None:
    """Write `values` if the job is still in the state it was read in."""
    target = values.get("state", job.state)
    assert target == job.state or target in LEGAL[job.state], (job.state, target)
    query = update(jobs).where(jobs.c.id == job.id, jobs.c.state == job.state).values(**values)
    if connection.execute(query).rowcount != 1:
        return None
    return _find(connection, job.id)


def _same_key(connection: Connection, new: NewJob) -> Job | None:
    if new.idempotency_key is None:
        return None
    query = select(jobs).where(jobs.c.owner == new.owner, jobs.c.idempotency_key == new.idempotency_key)
    row = connection.execute(query).first()
    if row is None:
        return None
    job = job_of(row)
    if job.fingerprint != new.fingerprint or job.deleted:
        raise KeyReused("this Idempotency-Key was used before with a different request; send a new key")
    return job


def _waiting(connection: Connection, admission: Admission) -> dict[str, int]:
    """How many jobs of each owner wait; without keys there is one owner, and an index alone tells."""
    if not admission.keys:
        return {"": int(connection.scalar(_WAITING) or 0)}
    return {owner: int(number) for owner, number in connection.execute(_WAITING_BY_OWNER)}
