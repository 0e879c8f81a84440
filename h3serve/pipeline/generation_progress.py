"""Where a generation stands, how long its stages took and what memory they needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from h3serve.runtime.memory_meter import PeakMeter

STAGES = ("read media", "encode text", "encode conditions", "denoise", "decode audio", "decode video")


@dataclass(frozen=True)
class Progress:
    """One report. `step` of `steps` evaluations (or frames, in `decode video`) are done.

    `seconds_left` is of this stage, None where it is not known.
    """

    stage: str
    step: int = 0
    steps: int = 0
    seconds_left: float | None = None


OnProgress = Callable[[Progress], None]  # may raise Cancelled to stop the generation


@dataclass
class Meter:
    """Seconds and peak device bytes per stage of one generation, and its progress reports."""

    peaks: PeakMeter  # the engine's
    on_progress: OnProgress | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    _began: float = 0.0
    _last: Progress = Progress("read media")

    @contextmanager
    def stage(self, name: str, *, settle: bool = True) -> Iterator[None]:
        """Times a stage to the end of its device work; reports its start.

        Without `settle` it ends when its caller has what it wants, though other work may be queued.
        """
        self.report(Progress(name))
        self._began = self._now()
        self.peaks.mark()
        yield
        now = self._now() if settle else time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._began
        if self.peaks.device.type == "cuda":
            self.peak_bytes[name] = self.peaks.mark()

    def step(self, done: int, steps: int) -> None:
        """Reports `done` of `steps` evaluations of the running denoise stage."""
        self._part("denoise", done, steps)

    def frames(self, done: int, frames: int) -> None:
        """Reports `done` of `frames` decoded frames."""
        self._part("decode video", done, frames)

    def _part(self, stage: str, done: int, of: int) -> None:
        spent = time.perf_counter() - self._began
        left = spent / done * (of - done) if done else None
        self.report(Progress(stage, done, of, left))

    def pulse(self) -> None:
        """Repeats the last report: a chance to stop between parts of a stage that has no steps."""
        self.report(self._last)

    def report(self, progress: Progress) -> None:
        """Hands one report to the caller, who may stop the generation by raising Cancelled."""
        self._last = progress
        if self.on_progress:
            self.on_progress(progress)

    def stats(self) -> dict[str, Any]:
        """Seconds per stage and, on a GPU, peak bytes per stage."""
        return {
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "total_seconds": round(sum(self.seconds.values()), 4),
            "peak_bytes": dict(self.peak_bytes),
            "load_peak_bytes": self.peaks.load_peak,
            "runtime_peak_bytes": self.peaks.replica_peak(),
        }

    def _now(self) -> float:
        if self.peaks.device.type == "cuda":
            torch.cuda.synchronize(self.peaks.device)
        return time.perf_counter()
