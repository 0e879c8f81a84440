"""A video on a server, as a reply or an event tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FINAL = frozenset({"completed", "failed", "cancelled", "expired"})


@dataclass(frozen=True)
class Video:
    """Where it stands; `body` is all that the server said of it, `error` its sentence where it failed."""

    id: str
    status: str
    progress: int = 0  # percent
    stage: str | None = None
    step: int | None = None
    steps: int | None = None
    seconds_left: float | None = None
    error: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_final(self) -> bool:
        """Nothing will change any more."""
        return self.status in FINAL

    @staticmethod
    def of(body: Mapping[str, Any]) -> Video:
        """From a reply's or an event's JSON."""
        known = {name: body.get(name) for name in ("stage", "step", "steps", "seconds_left")}
        error = body.get("error") or {}
        return Video(
            body["id"], body["status"], progress=body.get("progress", 0), error=error.get("message"), body=body, **known
        )
