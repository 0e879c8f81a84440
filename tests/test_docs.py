"""What the documents promise exists: names, pages, tests; and scripts stay small."""

import re
from pathlib import Path

import h3serve

ROOT = Path(__file__).parent.parent


def test_public_names() -> None:
    assert set(h3serve.__all__) == {"Condition", "GenerationRequest", "Generator", "Target"}
    assert all(getattr(h3serve, name) for name in h3serve.__all__)


def test_every_room_has_a_page() -> None:
    rooms = {p.parent.name for p in (ROOT / "h3serve").glob("*/__init__.py")}
    assert rooms <= {p.stem for p in (ROOT / "docs").glob("*.md")}


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
