"""Which faults in the source does the test suite notice?

    python -m bench.code_faults [--only TEXT] [--limit-s 300] [--out FILE] [--list]

Every fault of `bench/code_faults/*.yaml` is planted by itself in a copy of the working tree. Tests run in the
order in which they are likely to notice it: those named after the file, those that import it, those of its
folder. The first failure ends the fault: caught. A fault that all of them let pass within the limit has survived,
so the share printed at the end is a lower bound: tests further away might have noticed it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.code_faults.faults import Fault, read_faults
from bench.code_faults.run import Outcome, plant, run_tests, tests_for

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.code_faults", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose file or description contains this")
    parser.add_argument("--limit-s", type=float, default=300, help="seconds of tests for one fault")
    parser.add_argument("--out", type=Path, help="a Markdown table, written anew after every fault")
    parser.add_argument("--list", action="store_true", help="say which tests each fault would be shown to, and end")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in f"{fault.file} {fault.what}"]
    with tempfile.TemporaryDirectory(prefix="h3serve-faults-") as scratch:
        tree = copy_of_tree(Path(scratch) / "tree")
        outcomes: list[tuple[Fault, Outcome]] = []
        for number, fault in enumerate(faults, 1):
            tests = tests_for(tree, fault.file)
            if options.list:
                print(fault.what, *tests[0], "", *tests[1], sep="\n    ")
                continue
            with plant(tree, fault):
                outcome = run_tests(tree, tests, limit_s=options.limit_s)
            outcomes.append((fault, outcome))
            print(
                f"{number}/{len(faults)} {outcome.verdict:8} {outcome.seconds:5.0f} s  {fault.file}: {fault.what}",
                flush=True,
            )
            if options.out:
                options.out.write_text(table(outcomes))
        if outcomes:
            print(summary(outcomes))


def copy_of_tree(target: Path) -> Path:
    """A copy of what git tracks, as it is in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def summary(outcomes: list[tuple[Fault, Outcome]]) -> str:
    counted = [outcome for fault, outcome in outcomes if not fault.equivalent]
    caught = sum(outcome.verdict == "caught" for outcome in counted)
    return (
        f"{caught} of {len(counted)} faults caught ({caught / max(1, len(counted)):.0%}); "
        f"{len(outcomes) - len(counted)} more change nothing that can be seen"
    )


def table(outcomes: list[tuple[Fault, Outcome]]) -> str:
    rows = ["| file | fault | verdict | noticed by |", "|---|---|---|---|"]
    for fault, outcome in outcomes:
        verdict = (
            f"equivalent: {fault.equivalent}" if fault.equivalent and outcome.verdict != "caught" else outcome.verdict
        )
        rows.append(f"| `{fault.file}` | {fault.what} | {verdict} | {outcome.noticed_by} |")
    return "\n".join([summary(outcomes), "", *rows, ""])


if __name__ == "__main__":
    main()
