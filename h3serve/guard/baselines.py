"""Memory and time of a case against the committed numbers of this hardware kind.

One file per hardware kind and number of GPUs, `<platform>/meters-<n>gpu.yaml`: a case id, then the
fields of `Meters`. CUDA only; on the CPU nothing here runs.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import yaml
from pydantic import ValidationError

from h3serve.core.errors import RequestError
from h3serve.guard.cost_meters import DENOISE, Meters
from h3serve.guard.metric import Figure
from h3serve.guard.thresholds import MIB, TIME_LIMITS, MemoryLimits, RunKind, TimeLimits

IMPROVED = 0.20  # a gain that makes the old baseline blind
HEADER = "# Peaks in bytes, times in seconds. Written by `h3serve guard run`.\n"


def meters_path(root: Path, platform: str, gpus: int) -> Path:
    return root / platform / f"meters-{gpus}gpu.yaml"


def read_baselines(path: Path) -> dict[str, Meters]:
    """Meters by case id; empty if there is no such file; a RequestError if it is not one of ours."""
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text()) or {}
        return {case_id: Meters.model_validate(meters) for case_id, meters in content.items()}
    except (yaml.YAMLError, ValidationError, AttributeError, OSError) as error:
        raise RequestError("baseline", str(path), " ".join(str(error).split())) from None


def write_baselines(path: Path, baselines: dict[str, Meters]) -> None:
    """The file of these meters, ready to commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {case_id: meters.model_dump() for case_id, meters in sorted(baselines.items())}
    path.write_text(HEADER + yaml.safe_dump(content, sort_keys=False))


def compare_memory(baseline: Meters, now: Meters, limits: MemoryLimits) -> list[Figure]:
    """Load and runtime peaks, in MiB, each against its own baseline and tolerance."""
    return [
        _meter(
            "load peak",
            now.load_peak_bytes / MIB,
            (baseline.load_peak_bytes * (1 + limits.load_share) + limits.load_bytes) / MIB,
            unit=" MiB",
        ),
        _meter(
            "runtime peak",
            now.runtime_peak_bytes / MIB,
            (baseline.runtime_peak_bytes * (1 + limits.runtime_share) + limits.runtime_bytes) / MIB,
            unit=" MiB",
        ),
    ]


def compare_time(baseline: Meters, now: Meters, limits: TimeLimits) -> list[Figure]:
    """Total, every stage, and the median and slowest evaluation. A stage that is gone or new fails."""

    def figure(name: str, seconds: float | None, usual: float, share: float) -> Figure:
        return _meter(name, seconds, usual * (1 + share) + limits.floor_s, unit=" s")

    before, after = baseline.stage_seconds, now.stage_seconds
    figures = [figure("total time", now.total_seconds, baseline.total_seconds, limits.total_share)]
    for stage in [*before, *(stage for stage in after if stage not in before)]:
        share = limits.denoise_share if stage == DENOISE else limits.stage_share
        known = stage in before and stage in after
        figures.append(figure(f"{stage} time", after[stage] if known else None, before.get(stage, 0), share))
    for name, pick in (("median step time", statistics.median), ("slowest step time", max)):
        usual, seconds = (pick(meters.step_seconds or [0.0]) for meters in (baseline, now))
        steps_known = len(now.step_seconds) == len(baseline.step_seconds) > 0
        figures.append(figure(name, seconds if steps_known else None, usual, limits.step_share))
    return figures


def time_limits(own: TimeLimits | None, kind: RunKind) -> TimeLimits:
    return own or TIME_LIMITS[kind]


def improvements(baseline: Meters, now: Meters) -> list[str]:
    """Sentences about gains of more than a fifth: such a baseline no longer guards."""
    pairs = {
        "total time": (baseline.total_seconds, now.total_seconds),
        "runtime peak": (baseline.runtime_peak_bytes, now.runtime_peak_bytes),
        "load peak": (baseline.load_peak_bytes, now.load_peak_bytes),
    }
    return [
        f"{name} fell by {1 - after / before:.0%}: commit the new baseline"
        for name, (before, after) in pairs.items()
        if after < before * (1 - IMPROVED)
    ]


def _meter(name: str, value: float | None, limit: float, *, unit: str) -> Figure:
    return Figure(name=name, value=value, limit=limit, better="low", unit=unit, kind="meter")
