"""The guard around the real product: one demo case, clean and with a fault planted."""

from unittest.mock import patch

import pytest

from h3serve.guard.case_runner import Setup, load_generator, run_cases
from h3serve.guard.case_share import with_ids
from h3serve.guard.cases import load_cases
from h3serve.guard.cost_meters import StepClock
from h3serve.guard.truth_address import publish
from h3serve.pipeline import generator


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """A store whose ground truth the product has just made."""
    root = tmp_path_factory.mktemp("guard")
    (root / "out").mkdir()
    setup = Setup(store=root / "store", out=root / "out")
    first = run(setup)
    assert "no ground truth yet" in first.problems[0] and not first.failures
    publish(setup.out / "candidates", str(setup.store))
    return setup


def run(setup):
    (result,) = run_cases(with_ids(load_cases(["demo"]), ["demo-t2va"]), setup).results
    return result


def test_the_same_product_passes(setup):
    result = run(setup)
    assert result.passed, [figure.sentence for figure in result.failures]


def test_one_percent_of_loudness_is_caught_on_the_level(setup):
    right = generator.decode_audio
    with patch.object(generator, "decode_audio", lambda *args: right(*args) * 1.01):
        result = run(setup)
    assert {figure.name for figure in result.failures} == {"RMS difference", "channel RMS difference"}


def test_evaluations_are_counted_as_the_product_reports_them(setup, monkeypatch):
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    (case,) = with_ids(load_cases(["demo"]), ["demo-t2va"])
    clock = StepClock()
    load_generator(case, "demo-random").generate(case.request, on_progress=clock)
    assert len(clock.seconds) == case.request.num_inference_steps
    assert min(clock.seconds) > 0
