"""A measured number with its limit: the unit in which the guard thinks and reports."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, field_validator

Kind = Literal["agreement", "meter"]


class Figure(BaseModel):
    """One measured number. `value` None means it could not be measured, which never passes.

    `better` says which side of `limit` is good ("high": value >= limit). `kind` "agreement"
    (picture and sound; deterministic, never retried) or "meter" (memory and time). `where` names
    the frame, channel or stage that gave the worst value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float | None
    limit: float
    better: Literal["high", "low"]
    unit: str = ""
    where: str = ""
    kind: Kind = "agreement"

    @field_validator("value")
    @classmethod
    def _unmeasured_unless_finite(cls, value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    @property
    def passed(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.better == "high" else self.value <= self.limit

    @property
    def sentence(self) -> str:
        sign = "at least" if self.better == "high" else "at most"
        shown = "not measurable" if self.value is None else f"{self.value:.5g}{self.unit}"
        where = f" ({self.where})" if self.where else ""
        return f"{self.name} is {shown}{where}, should be {sign} {self.limit:.5g}{self.unit}"


def at_least(name: str, value: float | None, limit: float, *, unit: str = "", where: str = "") -> Figure:
    """An agreement figure that is good when high."""
    return Figure(name=name, value=value, limit=limit, better="high", unit=unit, where=where)


def at_most(name: str, value: float | None, limit: float, *, unit: str = "", where: str = "") -> Figure:
    """An agreement figure that is good when low."""
    return Figure(name=name, value=value, limit=limit, better="low", unit=unit, where=where)
