"""How many planted faults do the tests notice?

    python -m bench.plant_faults [--folder core --folder media] [--only TEXT] [--limit-s 900] [--out FILE] [--check]

Each fault of bench/faults/ is planted in a scratch copy of this tree and the tests run until the first fails: those
of the file's own name, then its folder's, then the rest. FILE (JSON lines) gets one line a fault: caught and by which
test, survived, or unclear (the test fails without the fault too, or the time is over). What it holds is not run again.
`--check` only says which faults do not fit the tree any more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.faults import FOLDERS, Fault, all_faults

ROOT = Path(__file__).parent.parent
LEFT_OUT = (".git", "__pycache__", ".*_cache", ".venv", ".hypothesis", "out", "guard-runs")
FIRST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def misfits(tree: Path, faults: list[Fault]) -> list[str]:
    """Faults whose old text is not there exactly once, as sentences."""
    found = [(f, (tree / "h3serve" / f.file).read_text().count(f.old)) for f in faults]
    return [f"{f.file}: {f.old!r} is there {count} times ({f.what})" for f, count in found if count != 1]


def stages(tree: Path, fault: Fault) -> list[list[str]]:
    """Groups of test files in the order in which they are tried."""
    folder, stem = fault.file.split("/")[0], Path(fault.file).stem
    files = sorted(str(p.relative_to(tree)) for p in (tree / "tests").rglob("test_*.py") if p.parent.name != "gpu")
    own = [f for f in files if f.startswith(f"tests/{folder}/") and stem.split("_")[0] in Path(f).stem]
    room = [f for f in files if f.startswith(f"tests/{folder}/") and f not in own]
    return [group for group in (own, room, [f for f in files if f not in own + room]) if group]


def run(tree: Path, tests: list[str], limit_s: float) -> tuple[int | None, str]:
    """(exit code, None when the time was over; the first test that failed)."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, ""
    found = FIRST_FAILED.search(done.stdout)
    return done.returncode, found[1] if found else ""


def plant(tree: Path, fault: Fault, limit_s: float) -> tuple[str, str]:
    """("caught", "survived" or "unclear"; the test, or why it is unclear)."""
    path = tree / "h3serve" / fault.file
    right = path.read_text()
    end = time.monotonic() + limit_s
    path.write_text(right.replace(fault.old, fault.new))
    try:
        for tests in stages(tree, fault):
            code, test = run(tree, tests, max(1.0, end - time.monotonic()))
            if code is None:
                return "unclear", "out of time"
            if code:
                break
        else:
            return "survived", ""
    finally:
        path.write_text(right)
    fails_anyway = run(tree, [test], limit_s)[0] != 0 if "::" in test else False
    return ("unclear", f"{test} fails without it too") if fails_anyway else ("caught", test or "at import")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", action="append", choices=FOLDERS, help="only faults of this folder; repeatable")
    parser.add_argument("--only", default="", help="only faults whose file or description holds this")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="seconds a fault may take")
    parser.add_argument("--out", type=Path, default=Path("out/faults.jsonl"))
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    faults = [f for f in all_faults() if asked.only in f"{f.file} {f.what}"]
    faults = [f for f in faults if not asked.folder or f.file.split("/")[0] in asked.folder]
    if wrong := misfits(ROOT, faults):
        print("\n".join(wrong))
    if asked.check:
        sys.exit(bool(wrong))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    results = {(r["file"], r["old"], r["new"]): r["result"] for r in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for fault in faults:
            if fault[:3] in results or misfits(tree, [fault]):
                continue
            began = time.monotonic()
            result, by = plant(tree, fault, asked.limit_s)
            results[fault[:3]] = result
            record = {**fault._asdict(), "result": result, "by": by, "seconds": round(time.monotonic() - began)}
            with asked.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{result:9}{fault.file}: {fault.what} {by}", flush=True)
    print(Counter(results[f[:3]] for f in faults if f[:3] in results))


if __name__ == "__main__":
    main()
