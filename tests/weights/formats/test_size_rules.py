"""A small checkpoint says so, and a damaged statement is refused by name."""

import json
from pathlib import Path

import pytest

from h3serve.core.errors import CheckpointError
from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.weights.formats.checksums import FILE, read_size_rules, write_checksums

SMALL = SizeRules(8192, 64, 64)


def test_round_trip_and_default(tmp_path: Path) -> None:
    assert read_size_rules(tmp_path) == RELEASED_SIZES
    write_checksums(tmp_path, {}, SMALL)
    assert read_size_rules(tmp_path) == SMALL


@pytest.mark.parametrize(
    "stored", [3, {}, {"max_canvas_area": 1}, {**SMALL.__dict__, "clip_short_edge": 0}, {**SMALL.__dict__, "more": 1}]
)
def test_damaged_rules_are_named(tmp_path: Path, stored: object) -> None:
    (tmp_path / FILE).write_text(json.dumps({"size_rules": stored}))
    with pytest.raises(CheckpointError, match="size_rules"):
        read_size_rules(tmp_path)
