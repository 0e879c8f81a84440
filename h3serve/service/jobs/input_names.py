"""What callers call the inputs of a job: the files lie there by number, but messages name what was sent."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

from h3serve.core.errors import MediaError

_FILE = "names.json"


def write_names(inputs: Path, names: dict[str, str]) -> None:
    """Keep the names beside the files: {file in the folder: name as given}."""
    if names:
        (inputs / _FILE).write_text(json.dumps(names))


def read_names(inputs: Path) -> dict[str, str]:
    """The names as they were given; empty for a folder without them."""
    try:
        return dict(json.loads((inputs / _FILE).read_text()))
    except (OSError, ValueError):
        return {}


def by_given_name(error: Exception, inputs: Path) -> Exception:
    """The same complaint, but about the file by the name that its caller knows."""
    if not isinstance(error, MediaError) or PurePath(str(error.value)).parent != inputs:
        return error
    name = PurePath(str(error.value)).name
    return MediaError(error.field, read_names(inputs).get(name, name), error.allowed)
