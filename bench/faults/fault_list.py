"""A fault: a place in the source, what stands there, and what is put there instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in `file`; `equivalent` says why nobody could notice a fault that survives."""

    file: str
    what: str
    old: str
    new: str
    equivalent: str = ""

    @property
    def name(self) -> str:
        """The name under which a result is kept."""
        return f"{self.file}: {self.what}"


def read_faults() -> list[Fault]:
    """Every fault of the YAML files beside this one, in their order."""
    return [Fault(**entry) for path in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]


def misfits(tree: Path, faults: list[Fault]) -> list[str]:
    """Faults whose old text is not there exactly once, as sentences."""
    found = [(f, (tree / f.file).read_text().count(f.old) if (tree / f.file).exists() else 0) for f in faults]
    return [f"{f.name}: {f.old!r} is there {count} times" for f, count in found if count != 1]


@contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """The fault is in the tree while the block lasts."""
    path = tree / fault.file
    right = path.read_text()
    path.write_text(right.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(right)
