"""Estimates against what was measured (bench/results/h200.json)."""

import json
import re
from pathlib import Path

import pytest

from h3serve.core import segments
from h3serve.core.estimate_seconds import MEASURED, denoise_seconds, fit, request_seconds

RESULTS = json.loads((Path(__file__).parent.parent.parent / "bench" / "results" / "h200.json").read_text())
REQUESTS = {title: report for title, report in RESULTS.items() if title.startswith("Request, ")}
GROWTH = {title: report for title, report in RESULTS.items() if title.startswith("Growth, ")}
STEPS = {title: report for title, report in RESULTS.items() if title.startswith("Step, ")}


@pytest.mark.parametrize("title", STEPS)
def test_estimates_are_near_the_measurements(title: str) -> None:
    rows, report = int(title.split()[1]), STEPS[title]
    tiers = MEASURED[report["facts"]["device"]]
    measured = {f["name"]: f["seconds"] for f in report["figures"] if f["name"] in tiers}
    assert measured
    for tier, seconds in measured.items():
        assert tiers[tier].seconds(rows) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("title", GROWTH)
def test_estimates_are_near_the_measured_growth(title: str) -> None:
    report, tier = GROWTH[title], title.split(", ")[1]
    points = [(int(figure["name"].split()[0]), figure["seconds"]) for figure in report["figures"]]
    assert len(points) == 5 and fit(points).distance(points) < 0.01
    for rows, seconds in points:
        assert MEASURED[report["facts"]["device"]][tier].seconds(rows) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("title", REQUESTS)
def test_estimates_of_whole_requests_are_within_a_tenth(title: str) -> None:
    """Text to video: `Request, 1344x768, 124 frames, 50 evaluations, lossless`."""
    numbers = re.match(r"Request, (\d+)x(\d+), (\d+) frames, (\d+) evaluations, (\w+)", title)
    assert numbers
    width, height, frames, evaluations = map(int, numbers.groups()[:4])
    facts, figures = REQUESTS[title]["facts"], {f["name"]: f["seconds"] for f in REQUESTS[title]["figures"]}
    rows = segments.target((width, height), frames).video_rows
    estimates = request_seconds(facts["rows"], evaluations, target_rows=rows, condition_rows=0)
    assert estimates[facts["device"]][facts["tier"]] == pytest.approx(figures["to the finished MP4"], rel=0.1)


def test_conditions_take_time_to_encode() -> None:
    alone, beside = (
        request_seconds(50_000, 50, target_rows=37_296, condition_rows=rows)["NVIDIA H200"]["lossless"]
        for rows in (0, 37_296)
    )
    assert beside - alone == pytest.approx(4.7, abs=0.2)


def test_all_evaluations_count() -> None:
    once, fifty = denoise_seconds(38010, 1), denoise_seconds(38010, 50)
    assert fifty["NVIDIA H200"]["lossless"] == pytest.approx(50 * once["NVIDIA H200"]["lossless"], rel=0.02)
    assert fifty["NVIDIA H200"]["fast"] < fifty["NVIDIA H200"]["lossless"] < fifty["NVIDIA H200"]["exact"]
