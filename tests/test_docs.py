"""What the documents promise exists: commands, flags, names; and scripts stay small."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import h3serve
from h3serve.cli.main import make_app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def commands() -> dict[str, set[str]]:
    """Command (and sub-command) -> its long flags."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        flags = {o for p in getattr(command, "params", []) for o in p.opts + p.secondary_opts if o.startswith("--")}
        found[name] = flags | {"--help"}
        for child, sub in getattr(command, "commands", {}).items():
            walk(sub, f"{name} {child}")

    walk(typer.main.get_command(make_app()), "h3serve")
    return found


def shown_lines(page: Path) -> list[str]:
    """Lines of fenced blocks that call h3serve, continuation lines joined."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.strip().startswith("h3serve ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_shown_commands_exist(page: Path) -> None:
    known = commands()
    for line in shown_lines(page):
        words = shlex.split(line)
        name = " ".join(words[:3]) if " ".join(words[:3]) in known else " ".join(words[:2])
        assert name in known, line
        flags = {w.split("=")[0] for w in words if w.startswith("--")}
        assert flags <= known[name], f"{line}: {flags - known[name]}"


def test_readme_shows_commands() -> None:
    assert len(shown_lines(ROOT / "README.md")) >= 4


def test_public_names() -> None:
    assert set(h3serve.__all__) == {"Condition", "GenerationRequest", "Generator", "Target"}
    assert all(getattr(h3serve, name) for name in h3serve.__all__)


def test_every_room_has_a_page() -> None:
    rooms = {p.parent.name for p in (ROOT / "h3serve").glob("*/__init__.py")}
    assert rooms - {"cli"} <= {p.stem for p in (ROOT / "docs").glob("*.md")}


def test_scripts_are_small() -> None:
    assert all(len(p.read_text().splitlines()) <= 25 for p in (ROOT / "scripts").iterdir() if p.is_file())


def test_versions_are_pinned() -> None:
    pins = [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = (ROOT / "pyproject.toml").read_text()
    wanted = set(re.findall(r'^    "([A-Za-z0-9_-]+)', project, re.MULTILINE))
    assert {w.lower().replace("_", "-") for w in wanted} - pinned <= {"flash-attn-4", "ray"}


def test_named_tests_exist() -> None:
    """docs/known_failures.md names a test for every kind; a bare name belongs to the file named before it."""
    page, file, seen = (ROOT / "docs" / "known_failures.md").read_text(), "", 0
    for name in re.findall(r"`([^`]*)`", page):
        if "::" in name:
            file, name = name.split("::")
        elif not name.startswith("test_") or name.endswith(".py"):
            continue
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"
        seen += 1
    assert seen > 25
