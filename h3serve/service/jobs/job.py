"""A job: one row of the store as a frozen value."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self


class State(StrEnum):
    """Where a job stands; the words of the OpenAI videos API plus `cancelled` and `expired`."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # it completed; its files have been given up


LEGAL: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.IN_PROGRESS, State.FAILED, State.CANCELLED}),
    State.IN_PROGRESS: frozenset({State.QUEUED, State.COMPLETED, State.FAILED, State.CANCELLED}),
    State.COMPLETED: frozenset({State.EXPIRED}),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.EXPIRED: frozenset(),
}

WAITING = frozenset({State.QUEUED, State.IN_PROGRESS})
FINAL = frozenset(State) - WAITING


Json = dict[str, Any]


@dataclass(frozen=True)
class NewJob:
    """What the caller decides; the store adds the rest. `request` is the frozen request."""

    id: str
    task: str
    request: Json
    plan: Json
    owner: str = ""
    priority: int = 0
    idempotency_key: str | None = None
    fingerprint: str | None = None
    webhook_url: str | None = None

    def with_key(self, idempotency_key: str | None) -> Self:
        return replace(self, idempotency_key=idempotency_key)


@dataclass(frozen=True)
class Job(NewJob):
    """A stored job. Times are seconds since the epoch; `files` maps a variant to its facts."""

    seq: int = 0
    state: State = State.QUEUED
    created_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    attempts: int = 0
    cancel_requested: bool = False
    deleted: bool = False
    error_code: str | None = None
    error: str | None = None
    stats: Json | None = None
    files: Json | None = None
    bytes: int = 0
    webhook_due_at: float | None = None
    webhook_tries: int = 0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the values that go with its final state."""

    state: State
    error_code: str | None = None
    error: str | None = None
    stats: Json | None = None
    files: Json | None = None

    @property
    def bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in (self.files or {}).values())


_ID = re.compile(r"video_[0-9a-f]{32}")


def is_id(text: str) -> bool:
    """Whether a job can have this name; anything else never reaches a database."""
    return _ID.fullmatch(text) is not None


def new_id() -> str:
    """A name nobody can guess, in the style of the videos API."""
    return f"video_{secrets.token_hex(16)}"


def job_of(row: Any) -> Job:
    """The value of a database row."""
    values = {field.name: getattr(row, field.name) for field in fields(Job)}
    return Job(**{**values, "state": State(values["state"])})
