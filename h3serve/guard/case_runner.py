"""Runs cases through the `Generator` and gathers what they show.

A run folder holds report.json and, by the naming rule of the store, `candidates/` (what was made, and
on CUDA the meters ready to commit) and `truths/` (what it was compared with).
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from h3serve.core.errors import H3Error, RequestError
from h3serve.guard import baselines
from h3serve.guard.cases import METERS, Case
from h3serve.guard.cost_meters import Meters, StepClock, need_gpu, platform_name, read_meters
from h3serve.guard.guard_results import CaseResult, Report, after_retry
from h3serve.guard.image_metrics import Similarity
from h3serve.guard.judge import Made, judge
from h3serve.guard.metric import Figure
from h3serve.guard.sample_media import resolve
from h3serve.guard.thresholds import RunKind
from h3serve.guard.truth_store import RUN_PREFIX, Budget, copy_case, find, load, save

LoadEngine = Callable[[Case, str], Any]  # (case, model) -> something with Generator's generate, forget and close
OnResult = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Setup:
    """Where a run reads and writes and how it judges. `store` and `out` are folders."""

    store: Path
    out: Path
    model: str | None = None
    kind: RunKind = "nightly"
    retries: int = 0
    clip: Similarity | None = None
    cap_bytes: int = 256 * 2**20


def load_generator(case: Case, model: str) -> Any:
    """The product's own `Generator` for `case`, on as many ranks as it says.

    Where memory or time are checked it has made a clip with one evaluation: the first one waits for libraries to load.
    """
    from h3serve.pipeline.generator import Generator

    device, ranks = ("cuda", case.gpus) if case.gpus else ("cpu", 1)
    settings = case.settings.model_dump()
    generator = Generator.from_pretrained(model, partition=case.partition, device=device, gpus=ranks, **settings)
    if METERS & set(case.checks):
        with tempfile.TemporaryDirectory() as scratch:
            request = case.request.model_copy(update={"num_inference_steps": 1, "sigmas": None})
            generator.generate(resolve(request, Path(scratch)))
    return generator


def new_run_folder(parent: Path) -> Path:
    """An empty folder named by the time, so that names sort by age."""
    folder = parent / f"{RUN_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
    folder.mkdir(parents=True)
    return folder


def newest_run(parent: Path) -> Path:
    """The last run folder in `parent`."""
    runs = sorted(parent.glob(f"{RUN_PREFIX}*"))
    if not runs:
        raise RequestError("run", str(parent), "there is no run in this folder")
    return runs[-1]


def run_cases(
    cases: Sequence[Case], setup: Setup, *, load_engine: LoadEngine = load_generator, on_result: OnResult | None = None
) -> Report:
    """One report over `cases`. What goes wrong in a case fails that case and is told in one sentence."""
    started, runner = datetime.now(UTC), _Runner(setup, Budget(setup.cap_bytes))
    results = []
    for engine_key, group in groupby(sorted(cases, key=_engine_key), key=_engine_key):
        for result in runner.run_group(list(group), engine_key[0] or setup.model, load_engine):
            results.append(result)
            if on_result:
                on_result(result)
    return Report(
        run=setup.out.name, started=started.isoformat(), made_with=made_with(), kind=setup.kind, results=tuple(results)
    )


def made_with() -> str:
    """Versions, for the reader of a report."""
    try:
        own = version("h3serve")
    except PackageNotFoundError:
        own = "from source"
    return f"h3serve {own}, torch {torch.__version__}"


def _engine_key(case: Case) -> tuple[str, str, int, str]:
    return case.model or "", case.partition, case.gpus, case.settings.model_dump_json()


@dataclass
class _Runner:
    setup: Setup
    budget: Budget

    def run_group(self, cases: list[Case], model: str | None, load_engine: LoadEngine) -> Iterator[CaseResult]:
        """Results of cases that share one engine; it is loaded once and gone afterwards."""
        first = cases[0]
        try:
            if model is None:
                raise RequestError("model", None, "these cases name no model: name one for the run")
            if first.gpus:
                need_gpu()
            engine = load_engine(first, model)
        except Exception as error:
            for case in cases:
                yield CaseResult(case_id=case.id, platform=platform_name(case.gpus), problems=(_sentence(error),))
            return
        for case in cases:
            yield self.run_case(case, engine)
        engine.close()
        del engine
        gc.collect()
        if first.gpus:
            torch.cuda.empty_cache()

    def run_case(self, case: Case, engine: Any) -> CaseResult:
        """One case, tried again while memory or time alone fail and retries are left."""
        result = self.attempt(case, engine)
        while result.may_be_retried and result.attempts <= self.setup.retries:
            result = after_retry(result, self.attempt(case, engine))
        return result

    def attempt(self, case: Case, engine: Any) -> CaseResult:
        began, platform = time.perf_counter(), platform_name(case.gpus)
        try:
            with tempfile.TemporaryDirectory() as scratch:
                made, meters = _generate(case, engine, Path(scratch))
                result = self.examine(case, platform, made, meters)
        except Exception as error:
            result = CaseResult(case_id=case.id, platform=platform, problems=(_sentence(error),))
        return result.model_copy(update={"seconds": round(time.perf_counter() - began, 3)})

    def examine(self, case: Case, platform: str, made: Made, meters: Meters | None) -> CaseResult:
        """Saves what was made under its official names, then compares it."""
        candidate = self.setup.out / "candidates" / platform / case.id
        save(made.kept(case.frames, f"{platform}, {made_with()}"), candidate, self.budget)
        notes = [f"over the size cap, not saved: {name}" for name in self.budget.left_out]
        self.budget.left_out.clear()
        folder, problems, truth = find(self.setup.store, platform, case.id), [], None
        if folder:
            truth = load(folder)
            kept = self.setup.out / "truths" / platform / case.id
            kept.parent.mkdir(parents=True, exist_ok=True)
            copy_case(folder, kept)
        else:
            problems = [f"no ground truth yet: this run's clip is saved in {candidate}; publish it to accept it"]
        figures = judge(case, made, truth, clip=self.setup.clip)
        if meters:
            found = self.compare_meters(case, platform, meters)
            figures, problems, notes = figures + found[0], problems + found[1], notes + found[2]
        return CaseResult(
            case_id=case.id,
            platform=platform,
            figures=tuple(figures),
            problems=tuple(problems),
            notes=tuple(notes),
            meters=meters,
        )

    def compare_meters(self, case: Case, platform: str, meters: Meters) -> tuple[list[Figure], list[str], list[str]]:
        """(figures, problems, notes); the numbers of this run are written out ready to commit."""
        known = baselines.read_baselines(baselines.meters_path(self.setup.store, platform, case.gpus))
        ready = baselines.meters_path(self.setup.out / "candidates", platform, case.gpus)
        baselines.write_baselines(ready, {**known, **baselines.read_baselines(ready), case.id: meters})
        baseline = known.get(case.id)
        if baseline is None:
            return [], [f"no baseline for memory and time yet: this run's numbers are ready to commit in {ready}"], []
        figures = []
        if "memory" in case.checks:
            figures += baselines.compare_memory(baseline, meters, case.thresholds.memory)
        if "time" in case.checks:
            limits = baselines.time_limits(case.thresholds.time, self.setup.kind)
            figures += baselines.compare_time(baseline, meters, limits)
        return figures, [], baselines.improvements(baseline, meters)


def _generate(case: Case, engine: Any, scratch: Path) -> tuple[Made, Meters | None]:
    measured = bool(METERS & set(case.checks))
    clock = StepClock() if measured else None
    engine.forget()  # else a second try, or a case with the same prompt, would find it encoded
    result = engine.generate(resolve(case.request, scratch), on_progress=clock)
    file = scratch / "clip.mp4"
    if "container" in case.checks:
        result.save(file)
    meters = read_meters(result.stats, clock.seconds) if clock else None
    return Made(result.video, result.audio, file), meters


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, H3Error) else f"{type(error).__name__}: {text}"
