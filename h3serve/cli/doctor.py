"""`h3serve doctor`: is this machine fit, above all for several GPUs?"""

from __future__ import annotations

import typer

from h3serve.cli.console import say


def doctor() -> None:
    """Check driver, GPUs and their links, shared memory, limits and settings; exit code 1 if something is broken."""
    from h3serve.runtime.doctor_checks import examine

    levels = []
    for finding in examine():
        levels.append(finding.level)
        mark = "" if finding.level == "ok" else f"{finding.level}: "
        say(f"{finding.subject:14} {mark}{finding.text}")
    if "fault" in levels:
        raise typer.Exit(1)
