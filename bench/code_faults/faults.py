"""A fault: a place in the source, what stands there, and what is put there instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in `file`; `equivalent` says why a fault that survives cannot be noticed by anybody."""

    file: str
    what: str
    old: str
    new: str
    equivalent: str = ""


def read_faults() -> list[Fault]:
    """Every fault of the YAML files beside this one, in their order."""
    return [Fault(**entry) for path in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]
