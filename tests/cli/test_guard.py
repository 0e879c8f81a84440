from functools import partial

import pytest
from typer.testing import CliRunner

from h3serve.cli import guard
from h3serve.core.errors import RequestError
from h3serve.guard.case_runner import run_cases
from h3serve.guard.cases import load_cases
from tests.guard.conftest import clip, sound  # noqa: F401  fixtures
from tests.guard.engine import FakeEngine


@pytest.fixture
def call(tmp_path, monkeypatch, clip, sound):  # noqa: F811
    """Runs the command line in a folder of its own, with an engine that makes the same clip each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guard.console, "width", 200)

    def run(*arguments, engine=None):
        made = engine or FakeEngine((clip, sound))
        lazy = partial(run_cases, load_engine=lambda case, model: made)
        monkeypatch.setattr("h3serve.guard.case_runner.run_cases", lazy)
        return CliRunner().invoke(guard.app, list(arguments))

    return run


def run_folders(tmp_path):
    return sorted((tmp_path / "guard-runs").glob("run-*"))


def test_run_publish_run_passes_and_leaves_every_report(call, tmp_path):
    assert call("run", "--case-ids", "demo-t2va").exit_code == 1
    (first,) = run_folders(tmp_path)
    accepted = call("publish")
    assert accepted.exit_code == 0 and f"{first.name} to baselines" in accepted.output
    again = call("run", "--case-ids", "demo-t2va")
    assert again.exit_code == 0, again.output
    last = run_folders(tmp_path)[-1]
    assert {path.name for path in last.iterdir()} >= {"report.json", "junit.xml", "report.html"}
    assert "trend" in (last / "report.html").read_text()


def test_a_change_exits_with_one_and_says_why(call, tmp_path, clip, sound):  # noqa: F811
    call("run", "--case-ids", "demo-t2va")
    call("publish", str(run_folders(tmp_path)[0]))
    changed = call("run", "--case-ids", "demo-t2va", engine=FakeEngine((255 - clip, sound)))
    assert changed.exit_code == 1
    assert "SSIM is" in changed.output and "FAIL demo-t2va" in changed.output


def test_old_runs_go(call, tmp_path):
    for _ in range(3):
        call("run", "--case-ids", "demo-t2va", "--keep", "2")
    assert len(run_folders(tmp_path)) == 2


def test_machines_report_as_one(call, tmp_path):
    for machine in ("1", "2"):
        call("run", "--machines", "2", "--machine", machine)
    merged = call("report", *map(str, run_folders(tmp_path)), "--history", "history.sqlite")
    assert merged.exit_code == 1
    assert all(case.id in merged.output for case in load_cases())
    assert (tmp_path / "guard-report" / "report.html").exists() and (tmp_path / "history.sqlite").exists()


def test_list_shows_the_machines_that_hold_named_cases(call):
    everything = call("list", "--machines", "2")
    assert everything.output.count("demo-") == 8
    some = call("list", "--machines", "2", "--case-ids", "demo-ref2va-video")
    assert some.output.count("demo-") < 8 and "demo-ref2va-video" in some.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--case-ids", "nothing"),
        ("list", "--case-ids", "nothing"),
        ("run", "--cases", "nothing.yaml"),
        ("run", "--machine", "3", "--machines", "2"),
        ("run", "--store", "hub:owner/truths"),
        ("publish", "nowhere"),
        ("publish",),
        ("report", "nowhere"),
    ],
)
def test_wrong_input_is_a_request_error_before_anything_is_made(call, tmp_path, arguments):
    assert isinstance(call(*arguments).exception, RequestError)
    assert run_folders(tmp_path) == []
