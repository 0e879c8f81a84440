import pytest

from h3serve.core.errors import RequestError
from h3serve.guard.baselines import (
    compare_memory,
    compare_time,
    improvements,
    meters_path,
    read_baselines,
    time_limits,
    write_baselines,
)
from h3serve.guard.cost_meters import Meters, StepClock, platform_name, read_meters, slug
from h3serve.guard.thresholds import MIB, TIME_LIMITS, MemoryLimits
from tests.guard.conftest import failed

GIB = 1024 * MIB
USUAL = Meters(
    load_peak_bytes=64 * GIB,
    runtime_peak_bytes=80 * GIB,
    total_seconds=100,
    stage_seconds={"encode text": 2.0, "denoise": 90.0, "decode video": 8.0},
    step_seconds=[13.0, 11.0, 11.0, 11.0],
)


def now(**change):
    return USUAL.model_copy(update=change)


def memory(**change):
    return failed(compare_memory(USUAL, now(**change), MemoryLimits()))


def seconds(kind="nightly", **change):
    return failed(compare_time(USUAL, now(**change), TIME_LIMITS[kind]))


def test_the_same_passes():
    assert not memory() and not seconds()


@pytest.mark.parametrize(("extra", "names"), [(783 * MIB, set()), (784 * MIB, {"load peak"})])
def test_load_peak_may_grow_by_one_percent_and_128_mib(extra, names):
    """1 % of 64 GiB is 655.36 MiB."""
    assert memory(load_peak_bytes=64 * GIB + extra) == names


@pytest.mark.parametrize(("extra", "names"), [(1766 * MIB, set()), (1767 * MIB, {"runtime peak"})])
def test_runtime_peak_may_grow_by_two_percent_and_128_mib(extra, names):
    """2 % of 80 GiB is 1638.4 MiB."""
    assert memory(runtime_peak_bytes=80 * GIB + extra) == names


@pytest.mark.parametrize(("kind", "names"), [("nightly", {"denoise time"}), ("change", set())])
def test_a_slower_stage_fails_by_run_kind(kind, names):
    stages = {**USUAL.stage_seconds, "denoise": 100.0}
    assert seconds(kind, stage_seconds=stages) == names


def test_a_slower_short_stage_fails_under_its_own_name():
    assert seconds(stage_seconds={**USUAL.stage_seconds, "encode text": 3.2}) == {"encode text time"}


def test_milliseconds_never_fail_a_stage():
    tiny = USUAL.model_copy(update={"stage_seconds": {"read media": 0.001}})
    grown = tiny.model_copy(update={"stage_seconds": {"read media": 0.04}})
    assert not failed(compare_time(tiny, grown, TIME_LIMITS["nightly"]))


def test_slower_steps_fail():
    assert seconds(step_seconds=[13.0, 14.0, 14.0, 14.0]) == {"median step time"}
    assert seconds(step_seconds=[17.0, 11.0, 11.0, 11.0]) == {"slowest step time"}


def test_a_stage_that_is_gone_or_new_fails():
    assert seconds(stage_seconds={"denoise": 90.0, "decode video": 8.0}) == {"encode text time"}
    assert seconds(stage_seconds={**USUAL.stage_seconds, "rest": 0.1}) == {"rest time"}
    assert seconds(stage_seconds={**USUAL.stage_seconds, "rest": 0.001}) == {"rest time"}  # however short


@pytest.mark.parametrize("steps", [[], [11.0, 11.0]])
def test_another_number_of_steps_fails(steps):
    assert seconds(step_seconds=steps) == {"median step time", "slowest step time"}


def test_a_gain_of_a_fifth_asks_for_a_new_baseline():
    assert improvements(USUAL, now(total_seconds=81)) == []
    assert improvements(USUAL, now(total_seconds=75)) == ["total time fell by 25%: commit the new baseline"]


def test_a_case_may_bring_its_own_time_limits():
    own = TIME_LIMITS["nightly"].model_copy(update={"step_share": 0.01})
    assert time_limits(own, "change") is own
    assert time_limits(None, "change") is TIME_LIMITS["change"]


def test_files_by_hardware_kind_round_trip(tmp_path):
    path = meters_path(tmp_path, "nvidia-h200", 2)
    assert path == tmp_path / "nvidia-h200" / "meters-2gpu.yaml"
    assert read_baselines(path) == {}
    write_baselines(path, {"b": USUAL, "a": now(total_seconds=1)})
    assert read_baselines(path) == {"a": now(total_seconds=1), "b": USUAL}
    assert path.read_text().startswith("#")


@pytest.mark.parametrize("text", ["a: [", "- a", "a: {load_peak_bytes: 1}", "a: 3"])
def test_a_broken_file_is_one_sentence(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(RequestError, match=r"x\.yaml"):
        read_baselines(tmp_path / "x.yaml")


def test_meters_from_the_stats_of_a_generation():
    stats = {
        "seconds": {"encode text": 1.0, "denoise": 5.0},
        "total_seconds": 6.0,
        "peak_bytes": {"encode text": 10, "denoise": 30},
        "load_peak_bytes": 20,
        "plan": {},
    }
    meters = read_meters(stats, [2.5, 2.5])
    assert (meters.load_peak_bytes, meters.runtime_peak_bytes, meters.total_seconds) == (20, 30, 6.0)
    assert meters.stage_seconds == stats["seconds"]


def test_step_clock_times_evaluations_alone(monkeypatch):
    from types import SimpleNamespace

    ticks = iter([10.0, 12.0, 13.5])
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    clock = StepClock()
    reports = [("encode text", 0, 0), ("denoise", 0, 0), ("denoise", 0, 2), ("denoise", 1, 2), ("denoise", 1, 2)]
    for stage, step, steps in [*reports, ("denoise", 2, 2), ("decode video", 0, 9)]:
        clock(SimpleNamespace(stage=stage, step=step, steps=steps))
    assert clock.seconds == [2.0, 1.5]


def test_platforms():
    assert platform_name(0) == "cpu"
    assert slug("NVIDIA GeForce RTX 5090") == "nvidia-geforce-rtx-5090"
