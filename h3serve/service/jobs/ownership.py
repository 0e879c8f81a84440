"""Who owns a PostgreSQL job database: one server, which looks again for as long as it lives.

Owning is a session's advisory lock, and this server's token in the database. The lock keeps a second server from
starting. It is gone as soon as the session is, so every write reads the token in its own transaction: a server whose
session was lost cannot write any more once another one has taken over. A SQLite file needs neither: it lies in the
data folder, which has a lock.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection, Engine, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from h3serve.core.errors import H3Error
from h3serve.service.jobs.database import facts

log = logging.getLogger("h3serve.server")
_LOCK = 0x6833  # any number, the same for every server
_FRESH_S = 10.0  # a look that is older says nothing
_LOOK_S = 1.0
_HAVE_OR_TAKE = text(
    "SELECT CASE WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = :lock"
    " AND pid = pg_backend_pid() AND granted) THEN true ELSE pg_try_advisory_lock(:lock) END"
)
# A session whose other end vanished keeps the lock until the database notices: soon, not after two hours.
_NOTICE_SOON = ("SET tcp_keepalives_idle = 5", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 2")
_OWNER = facts.c.name == "owner"
_TOKEN = select(facts.c.value).where(_OWNER)


class Taken(H3Error):
    """Another server owns the job database now; nothing was written."""

    http_status = 503

    def __init__(self) -> None:
        super().__init__("another server has taken over the job database")


class Unowned(H3Error):
    """The job database cannot be reached, or it is not certain that it is still this server's."""

    http_status, retry_s = 503, 5

    def __init__(self) -> None:
        super().__init__("the job database cannot be reached now; nothing was accepted")


class Ownership:
    """This server's hold on the database behind `engine`. Raises H3Error when another server has it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._token = engine, secrets.token_hex(16)
        self._session: Connection | None = None
        if not self._have_or_take():
            self.close()
            raise H3Error("another server is using the job database")
        with engine.begin() as connection:  # waits for the writes of an owner before
            if connection.execute(update(facts).where(_OWNER).values(value=self._token)).rowcount == 0:
                connection.execute(facts.insert().values(name="owner", value=self._token))
        self._seen_at: float | None = time.monotonic()

    @property
    def is_held(self) -> bool:
        """It was seen to be this server's within the last seconds."""
        return self._seen_at is not None and time.monotonic() - self._seen_at < _FRESH_S

    def check(self, connection: Connection) -> None:
        """First in every write: Taken when it is another server's. Nobody can take over before the write ends."""
        if connection.scalar(_TOKEN.with_for_update(read=True)) != self._token:
            raise Taken

    def look(self) -> None:
        """See whether the lock is still held, or take it again; Taken when another server has had it meanwhile."""
        began = time.monotonic()
        try:
            is_held = self._have_or_take()
            with self._engine.connect() as connection:
                token = connection.scalar(_TOKEN)
        except SQLAlchemyError as error:
            self._lose(str(getattr(error, "orig", error)))
            return
        if token != self._token:
            self._seen_at = None
            raise Taken
        if not is_held:
            self._lose("another session has the lock")
            return
        if self._seen_at is None:
            log.warning("the job database is back")
        self._seen_at = began

    def close(self) -> None:
        """Give it back."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(SQLAlchemyError):
                session.invalidate()
            session.close()

    def _have_or_take(self) -> bool:
        if self._session is None:
            self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            for setting in _NOTICE_SOON:
                self._session.exec_driver_sql(setting)
        return bool(self._session.scalar(_HAVE_OR_TAKE, {"lock": _LOCK}))

    def _lose(self, cause: str) -> None:
        if self._seen_at is not None:
            log.error("the job database is lost: no job is taken until it is back", extra={"cause": cause})
        self._seen_at = None
        self.close()


class OwnershipWatch(threading.Thread):
    """Looks every second until `stop` is set; `on_taken` hears that another server owns the database."""

    def __init__(self, ownership: Ownership, on_taken: Callable[[str], None], *, every_s: float = _LOOK_S) -> None:
        super().__init__(name="ownership", daemon=True)
        self.ownership, self.on_taken, self.every_s = ownership, on_taken, every_s
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(self.every_s):
            try:
                self.ownership.look()
            except Taken as taken:
                self.on_taken(str(taken))
                return
            except Exception:  # what was not seen ends by itself
                log.exception("the job database was not looked at")
