"""`h3serve guard`: did a change alter image, audio, memory or time?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from h3serve.guard.case_share import machines_for, share_of, with_ids
from h3serve.guard.cases import SHIPPED, Case, load_cases
from h3serve.guard.thresholds import RunKind

if TYPE_CHECKING:  # they bring torch and scipy: `h3serve --help` has no use for those
    from h3serve.guard.guard_results import CaseResult, Report

app = typer.Typer(help="Compare this build with accepted images, audio, memory and times.", no_args_is_help=True)
console = Console()

Cases = Annotated[
    list[str], typer.Option("--cases", help=f"A shipped set ({', '.join(SHIPPED)}) or a YAML file; may repeat.")
]
CaseIds = Annotated[str, typer.Option("--case-ids", help="Only these cases, separated by commas.")]
Machine = Annotated[int, typer.Option("--machine", help="Number of this machine, from 1.")]
Machines = Annotated[int, typer.Option("--machines", help="Over how many machines the cases are split.")]
Store = Annotated[str, typer.Option("--store", help="A folder, git+URL@COMMIT or hub:OWNER/NAME@COMMIT.")]


@app.command()
def run(
    cases: Cases = ["demo"],  # noqa: B006  typer wants a plain list
    case_ids: CaseIds = "",
    machine: Machine = 1,
    machines: Machines = 1,
    store: Store = "baselines",
    model: Annotated[str | None, typer.Option(help="Model for cases that name none.")] = None,
    kind: Annotated[RunKind, typer.Option(help="Which time limits: an idle machine's or a shared one's.")] = "nightly",
    retries: Annotated[int, typer.Option(min=0, help="Tries again where memory or time alone fail.")] = 0,
    clip: Annotated[Path | None, typer.Option(help="Local CLIP model folder; adds CLIP similarity.")] = None,
    out: Annotated[Path, typer.Option(help="Each run makes a folder in here.")] = Path("guard-runs"),
    keep: Annotated[int, typer.Option(min=1, help="How many run folders are kept.")] = 5,
    cap_mib: Annotated[int, typer.Option(min=1, help="Most that a run may save, in MiB.")] = 256,
) -> None:
    """Generate the cases, compare them, write the report; exit code 1 if a case fails."""
    from h3serve.guard.case_runner import Setup, new_run_folder, run_cases
    from h3serve.guard.cost_meters import platform_name
    from h3serve.guard.guard_report import write_all
    from h3serve.guard.history import record
    from h3serve.guard.image_metrics import clip_similarity
    from h3serve.guard.truth_address import fetch
    from h3serve.guard.truth_store import prune

    chosen = _chosen(cases, case_ids, machine, machines)
    if not chosen:
        console.print(f"machine {machine} of {machines} has none of these cases")
        return
    cache, platform = out / "stores", platform_name(max(case.gpus for case in chosen))
    truths = fetch(store, cache, platform)
    similarity = clip_similarity(clip) if clip else None
    folder = new_run_folder(out)
    setup = Setup(truths, folder, model, kind, retries, similarity, cap_mib * 2**20)
    report = run_cases(chosen, setup, on_result=_tell)
    record(out / "history.sqlite", report)
    write_all(report, folder, sources=[folder], history=out / "history.sqlite")
    prune(out, keep)
    _finish(report, folder)


@app.command("publish")
def publish_command(
    run_folder: Annotated[Path | None, typer.Argument(help="Accepted run; without it the newest.")] = None,
    store: Annotated[str, typer.Option(help="A folder, git+URL or hub:OWNER/NAME.")] = "baselines",
    case_ids: CaseIds = "",
    common: Annotated[bool, typer.Option(help="Accept the videos for every platform.")] = False,
    runs: Annotated[Path, typer.Option(help="Where runs are, if none is named.")] = Path("guard-runs"),
) -> None:
    """Accept what a run made as the next revision of the ground truths."""
    from h3serve.guard.case_runner import newest_run
    from h3serve.guard.truth_address import publish

    accepted = run_folder or newest_run(runs)
    revision = publish(accepted / "candidates", store, common=common, case_ids=_ids(case_ids))
    console.print(f"published {accepted} to {store}; the next revision is {revision}", soft_wrap=True)


@app.command("report")
def report_command(
    run_folders: Annotated[list[Path], typer.Argument(help="Runs of several machines or tries.")],
    out: Annotated[Path, typer.Option(help="Folder of the merged report.")] = Path("guard-report"),
    history: Annotated[Path | None, typer.Option(help="SQLite file of earlier runs; this one is added.")] = None,
) -> None:
    """Merge runs into one report; exit code 1 if a case fails."""
    from h3serve.guard.guard_report import write_all
    from h3serve.guard.guard_results import merge, read_report
    from h3serve.guard.history import record

    report = merge(read_report(folder) for folder in run_folders)
    if history:
        record(history, report)
    write_all(report, out, sources=run_folders, history=history)
    _finish(report, out)


@app.command("list")
def list_command(
    cases: Cases = ["demo"],  # noqa: B006
    case_ids: CaseIds = "",
    machines: Machines = 1,
) -> None:
    """Show cases, and which machines hold the named ones."""
    loaded = load_cases(cases)
    numbers = machines_for(loaded, _ids(case_ids), machines)
    lines = Table()
    for heading in ("machine", "case", "task", "gpus", "checks", "estimate s"):
        lines.add_column(heading, no_wrap=heading == "case")
    for number in numbers:
        for case in share_of(loaded, number, machines):
            checks = ", ".join(case.checks)
            lines.add_row(str(number), case.id, case.request.task, str(case.gpus), checks, f"{case.estimate_s:g}")
    console.print(lines)


def _chosen(cases: list[str], case_ids: str, machine: int, machines: int) -> list[Case]:
    loaded = load_cases(cases)
    wanted = {case.id for case in with_ids(loaded, _ids(case_ids))}
    return [case for case in share_of(loaded, machine, machines) if case.id in wanted]


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _tell(result: CaseResult) -> None:
    verdict = "pass" if result.passed else "FAIL"
    console.print(f"{verdict} {result.case_id} {result.seconds:.1f} s")


def _finish(report: Report, folder: Path) -> None:
    from h3serve.guard.guard_report import explain, table

    console.print(table(report))
    for line in explain(report):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    if not report.passed:
        raise typer.Exit(1)
