"""Plants one fault in a copy of the tree and runs the tests that are likely to notice it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.code_faults.faults import Fault

PER_TEST_S = 120


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a fault: `caught`, `survived`, or `late` where the limit ended a run."""

    verdict: str
    noticed_by: str
    seconds: float


@contextmanager
def plant(tree: Path, fault: Fault) -> Iterator[None]:
    """The fault is in the tree while the block lasts. ValueError if its text is not there exactly once."""
    path = tree / fault.file
    source = path.read_text()
    if source.count(fault.old) != 1:
        raise ValueError(f"{fault.file}: {fault.old!r} occurs {source.count(fault.old)} times ({fault.what})")
    path.write_text(source.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(source)


def tests_for(tree: Path, file: str) -> list[str]:
    """Test files by nearness: named after the file, importing it, of the same folder, importing its importers."""
    tests = sorted(p for p in (tree / "tests").rglob("test_*.py") if "gpu" not in p.parts)
    named = [p for p in tests if Path(file).stem in p.stem]
    module = file.removesuffix(".py").replace("/", ".")
    importing = [p for p in tests if module in _imports(p)]
    folder = tree / "tests" / Path(*Path(file).parts[1:-1])
    same = [p for p in tests if folder in p.parents]
    users = {_module(tree, p) for p in (tree / "h3serve").rglob("*.py") if module in _imports(p)}
    further = [p for p in tests if users & _imports(p)]
    near = dict.fromkeys([*named, *importing, *same, *further])
    return [str(p.relative_to(tree)) for p in near]


def run_tests(tree: Path, tests: list[str], *, limit_s: float) -> Outcome:
    """The first failing test ends the run."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        str(PER_TEST_S),
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome("late", "", time.monotonic() - began)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    verdict = "caught" if done.returncode else "survived"
    return Outcome(verdict, failed[1] if failed else "", time.monotonic() - began)


def _module(tree: Path, path: Path) -> str:
    return str(path.relative_to(tree).with_suffix("")).replace("/", ".")


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
