"""The states of a job and the legal moves between them.

queued ──> in_progress ──> completed ──> expired
  │  ^         │  ├──────> failed
  │  └─retry───┘  └──────> cancelled
  └──────────────────────> failed, cancelled
"""

from __future__ import annotations

from enum import StrEnum


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
