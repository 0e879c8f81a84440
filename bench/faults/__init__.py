"""Faults to be planted one at a time: (file below h3serve/, old text, new text, what it is), a module per folder."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

FOLDERS = ("core", "media", "models", "weights", "runtime", "pipeline", "service", "guard", "cli")


class Fault(NamedTuple):
    """`old` occurs once in `file`; `new` is put in its place."""

    file: str
    old: str
    new: str
    what: str


def all_faults() -> list[Fault]:
    """Every fault of every folder, in order."""
    modules = [import_module(f"bench.faults.{folder}") for folder in FOLDERS]
    return [Fault(f"{f}/{file}", *rest) for f, m in zip(FOLDERS, modules, strict=True) for file, *rest in m.FAULTS]
