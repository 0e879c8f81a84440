"""A report in the four forms people and machines read: terminal table, JUnit XML, JSON, one HTML page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from h3serve.guard.guard_results import CaseResult, Report, write_report
from h3serve.guard.report_page import write_page

JUNIT, PAGE = "junit.xml", "report.html"


def write_all(report: Report, folder: Path, *, sources: Sequence[Path], history: Path | None = None) -> None:
    """report.json, junit.xml and report.html in `folder`; clips are looked for in `sources` (run folders)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_report(report, folder)
    (folder / JUNIT).write_bytes(junit(report))
    write_page(report, folder / PAGE, sources=sources, history=history)


def table(report: Report) -> Table:
    """One line per case: verdict, how many figures passed, attempts, seconds."""
    lines = Table(title=f"{report.run}: {'passed' if report.passed else 'FAILED'}", title_justify="left")
    for heading in ("case", "on", "verdict", "figures", "attempts", "seconds"):
        justify: Literal["left", "right"] = "right" if heading in ("attempts", "seconds") else "left"
        lines.add_column(heading, justify=justify, no_wrap=heading == "case")
    for result in report.results:
        good = len(result.figures) - len(result.failures)
        lines.add_row(
            result.case_id,
            result.platform,
            Text("pass", "green") if result.passed else Text("FAIL", "bold red"),
            f"{good}/{len(result.figures)}",
            str(result.attempts),
            f"{result.seconds:.1f}",
        )
    return lines


def explain(report: Report) -> list[str]:
    """A line for every reason and note, under the case's name; empty if there is nothing to say."""
    lines = []
    for result in report.results:
        if said := [*reasons(result), *result.notes]:
            lines += [f"{result.case_id}:", *(f"  {sentence}" for sentence in said)]
    return lines


def reasons(result: CaseResult) -> list[str]:
    """Why a case failed, a sentence each; empty if it passed."""
    return [*result.problems, *(figure.sentence for figure in result.failures)]


def junit(report: Report) -> bytes:
    """A JUnit test suite: a failure where a figure is off, an error where a case could not be judged."""
    suite = ET.Element(
        "testsuite",
        name="h3serve guard",
        timestamp=report.started,
        tests=str(len(report.results)),
        failures=str(sum(bool(result.failures) for result in report.results)),
        errors=str(sum(not result.passed and not result.failures for result in report.results)),
        time=f"{sum(result.seconds for result in report.results):.3f}",
    )
    for result in report.results:
        case = ET.SubElement(
            suite, "testcase", classname=f"guard.{result.platform}", name=result.case_id, time=f"{result.seconds:.3f}"
        )
        if not result.passed:
            why = reasons(result) or ["nothing was measured"]
            kind = "failure" if result.failures else "error"
            ET.SubElement(case, kind, message=_printable(why[0])).text = _printable("\n".join(why))
        for figure in result.figures:
            shown = f"{figure.name} = {figure.value} (limit {figure.limit})"
            out = case.find("system-out")
            out = ET.SubElement(case, "system-out") if out is None else out
            out.text = (out.text or "") + _printable(shown) + "\n"
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or c >= " ")
