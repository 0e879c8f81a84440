"""What a worker needs from a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from h3serve.service.job import Json

# (stage, step, steps, seconds left or None); raising from it stops the generation.
OnProgress = Callable[[str, int, int, float | None], None]


class Engine(Protocol):
    """A loaded model. `tasks` are those it serves, `load_stats` its seconds and memory peaks.

    `size_rules` are the fields of core's `SizeRules` where the checkpoint has its own, else empty;
    `capacity` those of its `Capacity`, None where nothing is refused.
    """

    tasks: tuple[str, ...]
    load_stats: Json
    size_rules: Json
    capacity: Json | None

    def generate(self, request: Json, *, inputs: Path, output: Path, on_progress: OnProgress) -> Json:
        """Write the MP4 at `output` and return the stats; paths in `request` are below `inputs`.

        Stats: `seconds` and `peak_bytes` per stage and the `plan` that was run.
        """
        ...
