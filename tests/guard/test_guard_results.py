import json

import pytest

from h3serve.core.errors import RequestError
from h3serve.guard.guard_results import CaseResult, Report, after_retry, merge, read_report, write_report
from h3serve.guard.history import record, series
from h3serve.guard.metric import Figure, at_least, at_most

GOOD, BAD = at_least("SSIM", 0.99, 0.92), at_least("SSIM", 0.5, 0.92)
SLOW = Figure(name="total time", value=9, limit=5, better="low", unit=" s", kind="meter")
FAST = SLOW.model_copy(update={"value": 4.0})


def result(*figures, case_id="rain", **more):
    return CaseResult(case_id=case_id, platform="cpu", figures=figures, seconds=2, **more)


def report(*results, run="run-1", started="2025-01-01T00:00:00"):
    return Report(run=run, started=started, made_with="test", kind="nightly", results=results)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_cannot_be_measured_fails_either_way(value):
    assert not at_least("x", value, 0).passed
    assert not at_most("x", value, 1e9).passed


def test_the_limit_itself_passes():
    assert at_least("x", 0.92, 0.92).passed and at_most("x", 2.0, 2.0).passed
    assert not at_least("x", 0.9199, 0.92).passed and not at_most("x", 2.001, 2.0).passed


def test_sentences():
    assert at_least("SSIM", 0.5, 0.92, where="frame 3").sentence == "SSIM is 0.5 (frame 3), should be at least 0.92"
    assert at_most("level", None, 2, unit=" dB").sentence == "level is not measurable, should be at most 2 dB"


def test_a_case_without_figures_or_with_a_problem_fails():
    assert result(GOOD).passed
    assert not result().passed
    assert not result(GOOD, problems=("no ground truth",)).passed
    assert result(GOOD, notes=("faster",)).passed
    assert not report().passed


def test_only_memory_and_time_are_retried():
    assert result(GOOD, SLOW).may_be_retried
    assert not result(GOOD, FAST).may_be_retried
    assert not result(BAD, SLOW).may_be_retried
    assert not result(GOOD, SLOW, problems=("no baseline",)).may_be_retried


def test_retries_become_one_result():
    merged = after_retry(result(GOOD, SLOW), result(GOOD, FAST))
    assert merged.passed and merged.attempts == 2 and merged.seconds == 4


def test_a_disagreement_is_never_retried_away():
    merged = merge([report(result(BAD, FAST)), report(result(GOOD, FAST), run="run-2", started="2025-01-02T00:00:00")])
    assert not merged.passed and merged.results[0].figures == (BAD, FAST)


def test_machines_merge_in_the_order_they_started():
    later = report(result(GOOD, case_id="snow"), run="run-2", started="2025-01-02T00:00:00")
    merged = merge([later, report(result(GOOD))])
    assert merged.run == "run-1" and [r.case_id for r in merged.results] == ["rain", "snow"]


def test_json_is_strict_and_round_trips(tmp_path):
    whole = report(result(at_least("SSIM", float("nan"), 0.9), GOOD))
    path = write_report(whole, tmp_path)
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert read_report(tmp_path) == whole


@pytest.mark.parametrize("text", [None, "{}", "no json"])
def test_no_report_is_one_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(RequestError, match=r"report\.json"):
        read_report(tmp_path)


def test_history_keeps_every_run_once(tmp_path):
    path = tmp_path / "history.sqlite"
    assert series(path, "cpu", "rain") == {}
    first = report(result(GOOD, SLOW))
    second = report(result(BAD, at_least("gone", None, 1)), run="run-2", started="2025-01-02T00:00:00")
    for each in (second, first, first):
        record(path, each)
    assert series(path, "cpu", "rain") == {
        "SSIM": [("2025-01-01T00:00:00", 0.99), ("2025-01-02T00:00:00", 0.5)],
        "total time": [("2025-01-01T00:00:00", 9.0)],
    }
    assert series(path, "nvidia-h200", "rain") == {}


def test_a_broken_history_is_one_sentence(tmp_path):
    (tmp_path / "history.sqlite").write_text("this is not a database file at all, whatever its name")
    with pytest.raises(RequestError, match="history"):
        record(tmp_path / "history.sqlite", report(result(GOOD)))
