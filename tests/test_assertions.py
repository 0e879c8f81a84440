"""A test that asserts nothing cannot fail: every test asserts, itself or in a helper of the tests that it calls."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MUST_RAISE = {"pytest.raises", "pytest.warns", "pytest.fail"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions(file: Path) -> dict[str, Function]:
    """Functions and methods of a file by their name."""
    tree = ast.parse(file.read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}


@cache
def imported(file: Path) -> dict[str, tuple[Path, str]]:
    """Names that a file takes from other files of the tests: which file, and the name there."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            source = ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
            found |= {alias.asname or alias.name: (source, alias.name) for alias in node.names if source.is_file()}
    return found


def asserts_here(function: Function) -> bool:
    """Whether the function's own body holds an assertion that can fail."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in MUST_RAISE or ".assert_" in name:
                return True
    return False


@cache
def asserts(file: Path, name: str, seen: frozenset[tuple[Path, str]] = frozenset()) -> bool:
    function = functions(file).get(name)
    if function is None or (file, name) in seen:
        return False
    if asserts_here(function):
        return True
    called = {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    trail = seen | {(file, name)}
    return any(asserts(*imported(file).get(other, (file, other)), trail) for other in called)


def without(file: Path) -> Iterator[str]:
    """Names of a file's tests that assert nothing."""
    yield from (name for name in functions(file) if name.startswith("test_") and not asserts(file, name))


def test_every_test_asserts() -> None:
    assert [f"{f.relative_to(TESTS)}::{name}" for f in sorted(TESTS.rglob("test_*.py")) for name in without(f)] == []


def test_this_check_tells_them_apart(tmp_path: Path) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(
        "def helper(x):\n    assert x\n\n"
        "def idle(x):\n    assert True\n\n"
        "def test_itself():\n    assert 1 == 1\n\n"
        "def test_by_helper():\n    helper(1)\n\n"
        "def test_raises():\n    with pytest.raises(ValueError):\n        int('x')\n\n"
        "def test_empty():\n    print(1)\n\n"
        "def test_by_idle():\n    idle(1)\n    test_by_idle()\n"
    )
    assert list(without(file)) == ["test_empty", "test_by_idle"]
