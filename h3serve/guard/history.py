"""Every figure of every run, in one SQLite file, to be drawn as a trend."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from h3serve.core.errors import RequestError
from h3serve.guard.guard_results import Report

_TABLE = """CREATE TABLE IF NOT EXISTS figures (
    run TEXT, started TEXT, platform TEXT, case_id TEXT, name TEXT, value REAL, figure_limit REAL, passed INTEGER,
    made_with TEXT, PRIMARY KEY (run, platform, case_id, name))"""

Series = dict[str, list[tuple[str, float]]]


def record(path: Path, report: Report) -> None:
    """Adds the figures of `report`; recording a run again replaces it."""
    rows = []
    for result in report.results:
        place = (report.run, report.started, result.platform, result.case_id)
        for figure in result.figures:
            rows.append((*place, figure.name, figure.value, figure.limit, figure.passed, report.made_with))
    with _open(path) as database:
        database.executemany("INSERT OR REPLACE INTO figures VALUES (?,?,?,?,?,?,?,?,?)", rows)


def series(path: Path, platform: str, case_id: str) -> Series:
    """(started, value) of every run by figure name, oldest first; empty without a file."""
    found: Series = defaultdict(list)
    if path.exists():
        with _open(path) as database:
            rows = database.execute(
                "SELECT name, started, value FROM figures WHERE platform = ? AND case_id = ? AND value IS NOT NULL "
                "ORDER BY started",
                (platform, case_id),
            )
            for name, started, value in rows:
                found[name].append((started, value))
    return dict(found)


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        database = sqlite3.connect(path, timeout=30)
        try:
            with database:
                database.execute(_TABLE)
                yield database
        finally:
            database.close()
    except sqlite3.Error as error:
        raise RequestError("history", str(path), f"it is no usable SQLite file: {error}") from None
