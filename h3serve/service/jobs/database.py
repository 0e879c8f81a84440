"""The database tables, and how the database behind a URL is opened."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    select,
)
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from h3serve.core.errors import H3Error

SCHEMA_VERSION = "1"
_BUSY_MS = 5000  # how long SQLite waits for another program that holds the file
_WAL_PAGES = 20_000  # 80 MB: before, the janitor moves them into the database, and no write waits for it

# A PostgreSQL server that vanished is noticed within seconds.
_PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}
REFUSALS = (OperationalError, InterfaceError, InternalError, PoolTimeout)  # of a database that may do better later

metadata = MetaData()

# `seq` gives the order of creation; a job's public name is `id`.
jobs = Table(
    "jobs",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),  # name of the API key, "" without keys
    Column("state", String(16), nullable=False),
    Column("task", String(16), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("request", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("attempts", Integer, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("deleted", Boolean, nullable=False),  # gone for callers; the row waits for its worker
    Column("error_code", String(64)),
    Column("error", Text),
    Column("stats", JSON),
    Column("files", JSON),  # variant -> {name, bytes, sha256, type}
    Column("bytes", BigInteger, nullable=False),  # of the finished files
    Column("idempotency_key", String(255)),
    Column("fingerprint", String(64)),  # of the request, to tell a repeat from a reuse
    Column("webhook_url", Text),
    Column("webhook_due_at", Float),  # next delivery; null when none is owed
    Column("webhook_tries", Integer, nullable=False),
    UniqueConstraint("owner", "idempotency_key"),
    Index("jobs_state", "state", "priority", "seq"),
    Index("jobs_owner", "owner", "started_at"),
    Index("jobs_webhook", "webhook_due_at"),
)

facts = Table("facts", metadata, Column("name", String(32), primary_key=True), Column("value", Text))


def open_engine(url: str) -> Engine:
    """An engine for `url` with the tables made; raises H3Error when it cannot be used."""
    try:
        is_sqlite = url.startswith("sqlite")
        engine = create_engine(url, pool_pre_ping=not is_sqlite, connect_args={} if is_sqlite else _PATIENCE)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        metadata.create_all(engine)
        with engine.connect().execution_options(write=True) as connection, connection.begin():
            _check_version(connection)
    except (SQLAlchemyError, ImportError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        raise H3Error(f"the job database cannot be opened: {cause}") from error
    return engine


def is_full(error: SQLAlchemyError) -> bool:
    """Whether the database could not write for want of space."""
    text = str(getattr(error, "orig", error))
    return "full" in text or "No space" in text


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A write takes its lock at the start: upgrading a read later can fail without waiting.
    is_write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def _check_version(connection: Connection) -> None:
    found = connection.scalar(select(facts.c.value).where(facts.c.name == "schema"))
    if found is None:
        connection.execute(facts.insert().values(name="schema", value=SCHEMA_VERSION))
    elif found != SCHEMA_VERSION:
        raise H3Error(
            f"the job database has schema {found}, this program writes schema {SCHEMA_VERSION}: "
            "point --data at another folder or use the program that wrote it"
        )
