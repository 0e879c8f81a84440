"""Estimates against what was measured (bench/results/h200.json)."""

import json
from pathlib import Path

import pytest

from h3serve.core.speed import MEASURED, denoise_seconds

RESULTS = json.loads((Path(__file__).parent.parent.parent / "bench" / "results" / "h200.json").read_text())
STEPS = {title: report for title, report in RESULTS.items() if title.startswith("Step, ")}


@pytest.mark.parametrize("title", STEPS)
def test_estimates_are_near_the_measurements(title: str) -> None:
    rows, report = int(title.split()[1]), STEPS[title]
    tiers = MEASURED[report["facts"]["device"]]
    measured = {f["name"]: f["seconds"] for f in report["figures"] if f["name"] in tiers}
    assert len(measured) >= 2
    for tier, seconds in measured.items():
        assert tiers[tier].seconds(rows) == pytest.approx(seconds, rel=0.015)


def test_all_evaluations_count() -> None:
    once, fifty = denoise_seconds(38010, 1), denoise_seconds(38010, 50)
    assert fifty["NVIDIA H200"]["lossless"] == pytest.approx(50 * once["NVIDIA H200"]["lossless"], rel=0.02)
    assert fifty["NVIDIA H200"]["fast"] < fifty["NVIDIA H200"]["lossless"] < fifty["NVIDIA H200"]["exact"]
