import pytest

from h3serve.core.errors import OutputError
from h3serve.guard import case_runner, cost_meters
from h3serve.guard.case_runner import Setup, new_run_folder, run_cases
from h3serve.guard.case_share import with_ids
from h3serve.guard.cases import Case, load_cases
from h3serve.guard.truth_address import publish
from tests.guard.engine import GIB, FakeEngine

REQUEST = {"task": "t2va", "prompt": "rain", "target": {"duration_seconds": 4}}


def case(case_id="rain", **change):
    fields = {"partition": "fl2va", "gpus": 0, "model": "demo-random", "checks": ["frames", "sound", "container"]}
    return Case(**{"id": case_id, "request": REQUEST, "estimate_s": 1, **fields, **change})


@pytest.fixture
def setup(tmp_path):
    (tmp_path / "out").mkdir()
    return Setup(store=tmp_path / "store", out=tmp_path / "out")


@pytest.fixture
def fake_cuda(monkeypatch):
    """One GPU."""
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")


def one(setup, engine, *cases):
    report = run_cases(cases or [case()], setup, load_engine=lambda case, model: engine)
    return report.results[0]


def accept(setup):
    publish(setup.out / "candidates", str(setup.store))


def test_missing_truth_saves_the_clip_and_fails_then_publish_accepts_it(setup, clip, sound):
    engine = FakeEngine((clip, sound))
    missing = one(setup, engine)
    assert not missing.passed and not missing.failures
    assert "no ground truth" in missing.problems[0] and "candidates/cpu/rain" in missing.problems[0]
    accept(setup)
    again = one(setup, engine)
    assert again.passed, again
    assert {f.name for f in again.figures} >= {"SSIM", "waveform correlation", "level", "audio streams"}
    assert (setup.out / "truths" / "cpu" / "rain" / "facts.json").exists()


def test_a_change_fails_and_is_not_retried(setup, clip, sound, tmp_path):
    one(setup, FakeEngine((clip, sound)))
    accept(setup)
    engine = FakeEngine((255 - clip, sound), (clip, sound))
    result = one(Setup(store=setup.store, out=setup.out, retries=3), engine)
    assert not result.passed and engine.calls == 1
    assert {f.name for f in result.failures} >= {"SSIM", "PSNR", "mean difference"}


def test_only_named_checks_run(setup, clip, sound):
    one(setup, FakeEngine((clip, sound)))
    accept(setup)
    assert not one(setup, FakeEngine((clip, 0 * sound))).passed
    assert one(setup, FakeEngine((clip, 0 * sound)), case(checks=["frames"])).passed


def test_frames_all_needs_a_truth_with_all_frames(setup, clip, sound):
    one(setup, FakeEngine((clip, sound)))
    accept(setup)
    result = one(setup, FakeEngine((clip, sound)), case(frames="all"))
    assert [f.name for f in result.failures] == ["ground truth frames"]


def test_over_the_cap_the_run_says_what_it_left_out(setup, clip, sound):
    result = one(Setup(store=setup.store, out=setup.out, cap_bytes=150_000), FakeEngine((clip, sound)))
    assert any("frame_" in note for note in result.notes)


def test_errors_fail_their_case_alone(setup, clip, sound):
    engine = FakeEngine(OutputError("the latents hold NaN"), ValueError("odd"), (clip, sound))
    report = run_cases([case("a"), case("b"), case("c")], setup, load_engine=lambda case, model: engine)
    assert [r.problems for r in report.results[:2]] == [("the latents hold NaN",), ("ValueError: odd",)]
    assert report.results[2].figures
    assert not report.passed


def test_a_load_that_fails_fails_its_cases_and_the_rest_runs(setup, clip, sound):
    def load(case, model):
        if case.partition == "ref2va":
            raise OutputError("no such folder")
        return FakeEngine((clip, sound))

    (other,) = with_ids(load_cases(["demo"]), ["demo-ref2va-image-audio"])
    report = run_cases([other, case()], setup, load_engine=load)
    assert {r.case_id: r.problems[0][:9] for r in report.results} == {"rain": "no ground", other.id: "no such f"}


def test_a_gpu_case_without_a_gpu_is_one_sentence(setup, clip, sound, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = one(setup, FakeEngine((clip, sound)), case(**METERED))
    assert result.platform == "no-gpu" and "needs a CUDA device" in result.problems[0]


def test_an_engine_is_loaded_once_for_cases_that_share_it(setup, clip, sound):
    loads = []

    def load(case, model):
        loads.append((case.partition, model))
        return FakeEngine((clip, sound))

    cases = load_cases(["demo"])
    report = run_cases(cases, setup, load_engine=load)
    assert loads == [("fl2va", "demo-random"), ("ref2va", "demo-random")]
    assert len(report.results) == len(cases)


def test_a_case_without_a_model_needs_one_for_the_run(setup, clip, sound):
    result = one(setup, FakeEngine((clip, sound)), case(model=None))
    assert "name one for the run" in result.problems[0]


def test_samples_are_resolved_to_files(setup, clip, sound):
    engine = FakeEngine((clip, sound))
    one(setup, engine, *with_ids(load_cases(["demo"]), ["demo-fl2va-first"]))
    assert engine.requests[0].conditions[0].uri.endswith("small-first.png")


def test_on_the_cpu_no_meter_is_touched(setup, clip, sound, monkeypatch):
    def never(*args):
        raise AssertionError("CUDA was asked on a CPU run")

    for name in ("synchronize", "reset_peak_memory_stats", "max_memory_allocated", "empty_cache", "get_device_name"):
        monkeypatch.setattr(f"torch.cuda.{name}", never)
    monkeypatch.setattr("torch.distributed.all_reduce", never)
    one(setup, FakeEngine((clip, sound)))
    accept(setup)
    result = one(setup, FakeEngine((clip, sound)))
    assert result.passed and result.meters is None
    assert not list(setup.out.rglob("meters-*"))


METERED = {"gpus": 1, "checks": ["memory", "time"]}


@pytest.mark.usefixtures("fake_cuda")
class TestMeters:
    def test_missing_baseline_is_written_ready_to_commit_and_fails(self, setup, clip, sound):
        result = one(setup, FakeEngine((clip, sound)), case(**METERED))
        assert not result.passed
        ready = setup.out / "candidates" / "nvidia-h200" / "meters-1gpu.yaml"
        assert str(ready) in " ".join(result.problems)
        accept(setup)
        again = one(setup, FakeEngine((clip, sound)), case(**METERED))
        assert again.passed, again.problems
        assert {f.name for f in again.figures} >= {"load peak", "runtime peak", "total time", "denoise time"}

    def test_more_memory_fails_on_the_runtime_peak(self, setup, clip, sound):
        one(setup, FakeEngine((clip, sound)), case(**METERED))
        accept(setup)
        result = one(setup, FakeEngine((clip, sound), peak=9 * GIB), case(**METERED))
        assert [f.name for f in result.failures] == ["runtime peak"]

    def test_a_slow_run_is_retried_and_merges(self, setup, clip, sound):
        one(setup, FakeEngine((clip, sound)), case(**METERED))
        accept(setup)
        engine = FakeEngine((clip, sound), seconds=[30.0, 10.0])
        result = one(Setup(store=setup.store, out=setup.out, retries=2), engine, case(**METERED))
        assert result.passed and result.attempts == 2 and engine.calls == 2

    def test_a_slow_product_stays_slow_after_its_retries(self, setup, clip, sound):
        one(setup, FakeEngine((clip, sound)), case(**METERED))
        accept(setup)
        engine = FakeEngine((clip, sound), seconds=[30.0])
        result = one(Setup(store=setup.store, out=setup.out, retries=2), engine, case(**METERED))
        assert {"total time", "denoise time"} <= {f.name for f in result.failures} and engine.calls == 3

    def test_candidates_keep_the_baselines_of_other_cases(self, setup, clip, sound):
        one(setup, FakeEngine((clip, sound)), case("other", **METERED))
        accept(setup)
        one(setup, FakeEngine((clip, sound)), case(**METERED))
        accept(setup)
        assert one(setup, FakeEngine((clip, sound)), case("other", **METERED)).passed


def test_run_folders_sort_by_age(tmp_path):
    first, second = new_run_folder(tmp_path), new_run_folder(tmp_path)
    assert first.name.startswith("run-") and first.name < second.name


def test_made_with_names_versions():
    assert "h3serve" in case_runner.made_with() and "torch" in case_runner.made_with()
    assert cost_meters.platform_name(0) == "cpu"
