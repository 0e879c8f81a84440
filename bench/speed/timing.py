"""Times and memory of calls on a device, measured so that two of them can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of every timed run of one call, and the most bytes it needed beside what was there before."""

    seconds: tuple[float, ...]
    peak_bytes: int

    @property
    def median(self) -> float:
        """Seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Of the slowest over the quickest run, minus 1."""
        return max(self.seconds) / min(self.seconds) - 1


def seconds_of(call: Call, device: torch.device) -> float:
    """One run, from an idle device to the end of its work."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def alternate(
    calls: Mapping[str, Call], *, rounds: int, device: torch.device, warm_up: bool = True
) -> dict[str, Timing]:
    """Each call once to warm up, then all of them in turn, `rounds` times: A B A B.

    What drifts over a run, a card's temperature and clocks above all, falls on all of them alike.
    """
    for call in calls.values() if warm_up else ():
        seconds_of(call, device)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    peaks = dict.fromkeys(calls, 0)
    for _ in range(rounds):
        for name, call in calls.items():
            before = _reset_peak(device)
            seconds[name].append(seconds_of(call, device))
            peaks[name] = max(peaks[name], _peak(device) - before)
    return {name: Timing(tuple(seconds[name]), peaks[name]) for name in calls}


def sustained(call: Call, *, seconds: float, device: torch.device) -> float:
    """Seconds of one call when it is repeated for so long that the card has reached its power limit.

    The first half of the time warms up; the second is what counts.
    """
    call()
    once = min(seconds_of(call, device) for _ in range(2))
    count = max(1, round(seconds / 2 / once))

    def repeat() -> None:
        for _ in range(count):
            call()

    seconds_of(repeat, device)
    return seconds_of(repeat, device) / count


def _reset_peak(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
