"""The tests that are likely to notice a fault in a file, and a run of them that ends with the first failure."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PER_TEST_S = 120
FIRST_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)  # parameters may hold blanks


@dataclass(frozen=True)
class Outcome:
    """`caught`, `survived`, or `late` where the limit ended a run; the first test that failed."""

    verdict: str
    noticed_by: str
    seconds: float


def tests_for(tree: Path, file: str) -> tuple[list[str], ...]:
    """Test files named after the file; those importing it; those of its folder, or that import its importers."""
    tests = sorted(p for p in (tree / "tests").rglob("test_*.py") if "gpu" not in p.parts)
    module = file.removesuffix(".py").replace("/", ".")
    folder = tree / "tests" / Path(*Path(file).parts[1:-1])
    users = {_module(tree, p) for p in (tree / "h3serve").rglob("*.py") if module in _imports(p)}
    named = [p for p in tests if folder in p.parents and Path(file).stem in p.stem]
    near = [p for p in tests if p not in named and module in _imports(p)]
    further = [p for p in tests if p not in (*named, *near) and (folder in p.parents or users & _imports(p))]
    return tuple([str(p.relative_to(tree)) for p in group] for group in (named, near, further))


def run_tests(tree: Path, groups: tuple[list[str], ...], *, limit_s: float) -> Outcome:
    """The verdict of the groups, one after another, on the tree as it is."""
    began = time.monotonic()
    for tests in filter(None, groups):
        try:
            done = _pytest(tree, tests, limit_s - (time.monotonic() - began))
        except subprocess.TimeoutExpired:
            return Outcome("late", "", time.monotonic() - began)
        if done.returncode:
            failed = FIRST_FAILED.search(done.stdout)
            return Outcome("caught", failed[1] if failed else "at import", time.monotonic() - began)
    return Outcome("survived", "", time.monotonic() - began)


def _pytest(tree: Path, tests: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", str(PER_TEST_S)]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=max(1.0, limit_s), check=False
    )


def _module(tree: Path, path: Path) -> str:
    return str(path.relative_to(tree).with_suffix("")).replace("/", ".")


@cache  # every fault asks for all of them, and none changes an import
def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
