"""What a run found, as JSON, and how retries and machines merge into one report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from h3serve.core.errors import RequestError
from h3serve.guard.cost_meters import Meters
from h3serve.guard.metric import Figure
from h3serve.guard.thresholds import RunKind

REPORT = "report.json"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseResult(_Value):
    """One case: its figures, and problems that no figure tells (each fails the case); notes do not."""

    case_id: str
    platform: str
    figures: tuple[Figure, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    meters: Meters | None = None
    seconds: float = 0.0
    attempts: int = 1

    @property
    def passed(self) -> bool:
        return bool(self.figures) and not self.problems and not self.failures

    @property
    def failures(self) -> list[Figure]:
        return [figure for figure in self.figures if not figure.passed]

    @property
    def agrees(self) -> bool:
        """True unless picture or sound differ: that is decided by the first attempt for good."""
        return all(figure.kind == "meter" for figure in self.failures)

    @property
    def may_be_retried(self) -> bool:
        """True if memory or time alone failed: another process may have been in the way."""
        return bool(self.failures) and self.agrees and not self.problems


class Report(_Value):
    """One run on one or more machines. `started` is UTC, ISO 8601."""

    run: str
    started: str
    made_with: str
    kind: RunKind
    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.passed for result in self.results)


def after_retry(first: CaseResult, later: CaseResult) -> CaseResult:
    """Both attempts as one: a disagreement of the first stays, otherwise the later one counts."""
    attempts = first.attempts + later.attempts
    kept = later if first.agrees else first
    return kept.model_copy(update={"attempts": attempts, "seconds": first.seconds + later.seconds})


def merge(reports: Iterable[Report]) -> Report:
    """One report of several, in the order they started; a case found twice is a retry."""
    ordered = sorted(reports, key=lambda report: report.started)
    merged: dict[tuple[str, str], CaseResult] = {}
    for report in ordered:
        for result in report.results:
            key = (result.platform, result.case_id)
            merged[key] = after_retry(merged[key], result) if key in merged else result
    return ordered[0].model_copy(update={"results": tuple(merged.values())})


def read_report(folder: Path) -> Report:
    """The report of a run folder; a RequestError naming it if there is none."""
    path = folder / REPORT
    try:
        return Report.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise RequestError("run", str(path), f"it is no guard report: {' '.join(str(error).split())}") from None


def write_report(report: Report, folder: Path) -> Path:
    path = folder / REPORT
    path.write_text(report.model_dump_json(indent=1) + "\n")
    return path
