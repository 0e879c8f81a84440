"""Pixel sizes a checkpoint was made for, where they are not the released ones (`h3serve.json`)."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from h3serve.core.errors import CheckpointError
from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.weights.files.tensor_index import read_json
from h3serve.weights.formats.checksums import FILE

KEY = "size_rules"


def read_size_rules(folder: Path) -> SizeRules:
    """Rules of the partition in `folder`; the released ones if its `h3serve.json` names none."""
    file = folder / FILE
    stored = read_json(file).get(KEY) if file.is_file() else None
    if stored is None:
        return RELEASED_SIZES
    names = {field.name for field in fields(SizeRules)}
    whole = isinstance(stored, dict) and set(stored) == names and all(type(v) is int and v > 0 for v in stored.values())
    if not whole:
        raise CheckpointError(f"{file}: {KEY} must hold the positive whole numbers {', '.join(sorted(names))}")
    return SizeRules(**stored)
