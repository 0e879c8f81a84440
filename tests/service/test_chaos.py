"""A small run of what bench/crash.py does at length."""

import random
from pathlib import Path

from tests.service.chaos import Chaos


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    figures = Chaos(tmp_path / "data", jobs=6, kills=3, rng=random.Random(1)).run()
    assert sum(figures["states"].values()) == 6
