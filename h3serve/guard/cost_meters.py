"""What a case cost: peaks of device memory and seconds, measured on CUDA and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from h3serve.core.errors import CapacityError

DENOISE = "denoise"


class Meters(BaseModel):
    """Peaks in bytes (of allocated device memory), times in seconds; steps are of the denoise loop."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    load_peak_bytes: int
    runtime_peak_bytes: int
    total_seconds: float
    stage_seconds: dict[str, float]
    step_seconds: list[float]


@dataclass
class StepClock:
    """An `on_progress` callback that times every evaluation to the end of its device work."""

    ends: list[float] = field(default_factory=list)

    def __call__(self, progress: Any) -> None:
        # The start of the stage has no steps yet; a repeated report is a pulse, not a step.
        if progress.stage != DENOISE or not progress.steps or progress.step != len(self.ends):
            return
        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Seconds of each evaluation; report 0 is the start of the loop."""
        return [round(after - before, 5) for before, after in zip(self.ends, self.ends[1:], strict=False)]


def need_gpu() -> None:
    """A CapacityError without a GPU."""
    if not torch.cuda.is_available():
        raise CapacityError("this case needs a CUDA device and none is usable here")


def read_meters(stats: Mapping[str, Any], steps: list[float]) -> Meters:
    """Meters of one generation, from its `stats`: seconds and peak bytes per stage, peak of the load."""
    return Meters(
        load_peak_bytes=stats["load_peak_bytes"],
        runtime_peak_bytes=max(stats["peak_bytes"].values()),
        total_seconds=stats["total_seconds"],
        stage_seconds=dict(stats["seconds"]),
        step_seconds=steps,
    )


def platform_name(gpus: int) -> str:
    """The folder name of this hardware kind: "cpu", or the GPU's name, such as "nvidia-h200"."""
    if not gpus:
        return "cpu"
    return slug(torch.cuda.get_device_name()) if torch.cuda.is_available() else "no-gpu"


def slug(name: str) -> str:
    """Lower case, with every run of other characters as one hyphen."""
    kept = "".join(c if c.isalnum() else " " for c in name.lower())
    return "-".join(kept.split())
