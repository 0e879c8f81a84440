"""What is wrong with a prompt: of which kind, in one sentence, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["fields", "alignment", "cuts", "speakers", "references", "length", "language"]


@dataclass(frozen=True)
class Complaint:
    """`start` and `end` are characters of the prompt; equal ones say where something is missing."""

    kind: Kind
    message: str
    start: int
    end: int

    def to_json(self) -> dict[str, Any]:
        """The fields by their names."""
        return asdict(self)
