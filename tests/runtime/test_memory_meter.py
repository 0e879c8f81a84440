"""Load peak and runtime peak, on a pretended GPU; zero and no collective on a CPU."""

from collections.abc import Iterator

import pytest
import torch

from h3serve.runtime.memory_meter import PeakMeter


class Counter:
    """Stands for the allocator's statistics."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def allocate(self, to: int) -> None:
        self.now = to
        self.peak = max(self.peak, to)

    def reset(self, device: object) -> None:
        self.peak = self.now


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    counter = Counter()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: counter.peak)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: counter.now)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", counter.reset)
    yield counter


def test_phases_do_not_mix(counter: Counter) -> None:
    meter = PeakMeter(torch.device("cuda"))
    counter.allocate(90), counter.allocate(40)
    assert (meter.load_peak, meter.runtime_peak) == (90, 0)
    meter.load_done()
    assert (meter.load_peak, meter.runtime_peak) == (90, 40)
    counter.allocate(60), counter.allocate(45)
    assert (meter.load_peak, meter.runtime_peak) == (90, 60)


def test_the_load_peak_counts_from_what_was_held_before(counter: Counter) -> None:
    counter.allocate(32)
    meter = PeakMeter(torch.device("cuda"))
    counter.allocate(90), counter.allocate(40)
    assert meter.load_peak == 58
    meter.load_done()
    assert (meter.load_peak, meter.runtime_peak) == (58, 40)


def test_stages_are_told_apart_without_losing_the_peak(counter: Counter) -> None:
    meter = PeakMeter(torch.device("cuda"))
    meter.load_done()
    counter.allocate(70), counter.allocate(10)
    assert meter.mark() == 70
    counter.allocate(30), counter.allocate(10)
    assert meter.mark() == 30
    assert meter.runtime_peak == 70


def test_a_replica_has_its_largest_ranks_peak(counter: Counter) -> None:
    meter = PeakMeter(torch.device("cuda"), largest=lambda peak: max(peak, 80))
    counter.allocate(60)
    meter.load_done()
    assert meter.load_peak == 80
    counter.allocate(70)
    assert meter.replica_peak() == 80


def test_a_cpu_has_no_peaks_and_meets_nobody() -> None:
    def never(peak: int) -> int:
        raise AssertionError("a collective on a CPU")

    meter = PeakMeter(torch.device("cpu"), largest=never)
    meter.load_done()
    assert (meter.mark(), meter.load_peak, meter.runtime_peak, meter.replica_peak()) == (0, 0, 0, 0)
