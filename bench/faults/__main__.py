"""Which faults in the source does the test suite notice?

    python -m bench.faults [--only TEXT] [--limit-s 300] [--out FILE] [--check]

Every fault of `bench/faults/*.yaml` is planted by itself in a scratch copy of the working tree, and the tests nearest
to it run until the first fails. A failure counts only if that test passes without the fault. What all of them let
pass within the limit has survived, so the share at the end is a lower bound: tests further away might have noticed.
FILE (JSON lines) gets a line a fault; what it holds is not run again. `--check` only says which faults do not fit the
tree any more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.faults.fault_list import Fault, misfits, planted, read_faults
from bench.faults.nearest_tests import Outcome, run_tests, tests_for

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or description contains this")
    parser.add_argument("--limit-s", type=float, default=300, help="seconds of tests for one fault")
    parser.add_argument("--out", type=Path, default=Path("out/faults.jsonl"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in fault.name]
    wrong = misfits(ROOT, faults)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if options.check:
        sys.exit(bool(wrong))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    verdicts = {entry["name"]: entry["verdict"] for entry in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="h3serve-faults-") as scratch:
        tree = copy_of_tree(Path(scratch) / "tree")
        for fault in faults:
            if fault.name in verdicts or misfits(tree, [fault]):
                continue
            outcome = try_fault(tree, fault, options.limit_s)
            verdicts[fault.name] = outcome.verdict
            with options.out.open("a") as file:
                file.write(json.dumps({"name": fault.name, **vars(outcome)}) + "\n")
            print(f"{outcome.verdict:9}{outcome.seconds:5.0f} s  {fault.name}  {outcome.noticed_by}", flush=True)
    print(summary(faults, verdicts))


def copy_of_tree(target: Path) -> Path:
    """A copy of what git tracks, as it is in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def try_fault(tree: Path, fault: Fault, limit_s: float) -> Outcome:
    """What the nearest tests make of a fault; `unclear` if the test that failed fails without it too."""
    with planted(tree, fault):
        outcome = run_tests(tree, tests_for(tree, fault.file), limit_s=limit_s)
    named = outcome.verdict == "caught" and "::" in outcome.noticed_by
    if named and run_tests(tree, ([outcome.noticed_by],), limit_s=limit_s).verdict != "survived":
        return Outcome("unclear", outcome.noticed_by, outcome.seconds)
    return outcome


def summary(faults: list[Fault], verdicts: dict[str, str]) -> str:
    """How many were noticed of those that can be."""
    counted = [verdicts[f.name] for f in faults if f.name in verdicts and not f.equivalent]
    share = counted.count("caught") / max(1, len(counted))
    equivalent = sum(1 for f in faults if f.equivalent)
    return f"{share:.1%} of {len(counted)} caught {dict(Counter(counted))}; {equivalent} more change nothing visible"


if __name__ == "__main__":
    main()
