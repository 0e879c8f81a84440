"""How many planted faults do the shipped demo cases catch?

    python -m bench.guard_faults [--device cpu|cuda] [--out FILE]

Makes ground truths (and, on CUDA, baselines) with the product as it is, checks that a second run of it
passes, then breaks the product one way at a time, in this process, and runs the same cases again. A
fault is caught if a case fails. Faults of memory and time exist on CUDA only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from h3serve.guard.case_runner import Setup, load_generator, new_run_folder, newest_run, run_cases
from h3serve.guard.cases import Case, load_cases
from h3serve.guard.guard_report import reasons
from h3serve.guard.guard_results import Report
from h3serve.guard.truth_address import publish
from h3serve.pipeline import conditions, engine, generator


@dataclass(frozen=True)
class Fault:
    """`weights` alters a loaded generator, `code` replaces a function while the cases run."""

    name: str
    weights: Callable[[Any], None] = lambda _generator: None
    code: Callable[[], AbstractContextManager[Any]] = nullcontext
    cuda_only: bool = False


def swap_query_and_key(loaded: Any) -> None:
    """Stacked [q;k;v] read as [k;q;v], as a wrong checkpoint layout would give."""
    for denoiser in loaded.engine.denoisers.values():
        stacked = [value for name, value in denoiser.transformer.named_parameters() if "qkv" in name]
        assert stacked, "the transformer has no stacked QKV any more: plant this fault anew"
        for weight in stacked:
            query, key, value = weight.data.chunk(3)
            weight.data = torch.cat([key, query, value])


def swapped_schedules() -> AbstractContextManager[Any]:
    right = generator.make_schedules
    return patch.object(generator, "make_schedules", lambda *args: right(*args)[::-1])


def audio_shift_12() -> AbstractContextManager[Any]:
    return patch.object(engine.Engine, "shifts", lambda _self, _task: (12.0, 12.0))


def dropped_condition_noise() -> AbstractContextManager[Any]:
    return patch.object(conditions, "mix", lambda clean, _noise, _level: clean)


def louder_sound() -> AbstractContextManager[Any]:
    right = generator.decode_audio
    return patch.object(generator, "decode_audio", lambda *args: right(*args) * 1.01)


@contextmanager
def one_more_copy() -> Iterator[None]:
    """The transformer's weights are held a second time while a clip is made."""
    right = generator.Generator.run

    def run(self: generator.Generator, *args: Any, **named: Any) -> Any:
        held = [weight.clone() for d in self.engine.denoisers.values() for weight in d.transformer.parameters()]
        result = right(self, *args, **named)
        del held
        return result

    with patch.object(generator.Generator, "run", run):
        yield


def slower_stage() -> AbstractContextManager[Any]:
    right = generator.decode_audio

    def decode(*args: Any) -> Any:
        time.sleep(1.0)
        return right(*args)

    return patch.object(generator, "decode_audio", decode)


FAULTS = (
    Fault("query and key swapped in QKV", weights=swap_query_and_key),
    Fault("video and audio schedules swapped", code=swapped_schedules),
    Fault("audio shift 12 instead of 3", code=audio_shift_12),
    Fault("condition noise dropped", code=dropped_condition_noise),
    Fault("sound 1 % louder", code=louder_sound),
    Fault("one more copy of the transformer's weights", code=one_more_copy, cuda_only=True),
    Fault("a stage slower by a second", code=slower_stage, cuda_only=True),
)


def run(cases: list[Case], root: Path, fault: Fault | None = None) -> Report:
    """One guard run, with `fault` planted."""

    def load(case: Case, model: str) -> generator.Generator:
        loaded: generator.Generator = load_generator(case, model)
        if fault:
            fault.weights(loaded)
        return loaded

    setup = Setup(store=root / "store", out=new_run_folder(root / "runs"))
    with fault.code() if fault else nullcontext():
        return run_cases(cases, setup, load_engine=load)


def tell(report: Report) -> Iterator[str]:
    """The cases that failed and each one's first two reasons."""
    for result in report.results:
        if not result.passed:
            yield f"    {result.case_id}: {'; '.join(reasons(result)[:2])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = load_cases(["demo" if arguments.device == "cpu" else "demo-gpu"])
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if arguments.out:
            arguments.out.write_text("\n".join(lines) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run(cases, root)
        publish(newest_run(root / "runs") / "candidates", str(root / "store"))
        clean = run(cases, root)
        say(f"unbroken product, {len(cases)} cases: {'passes' if clean.passed else 'FAILS'}")
        for line in tell(clean):
            say(line)
        tried = caught = 0
        for fault in FAULTS:
            if fault.cuda_only and arguments.device == "cpu":
                say(f"not tried: {fault.name} (memory and time are measured on CUDA only)")
                continue
            report = run(cases, root, fault)
            tried, caught = tried + 1, caught + (not report.passed)
            failed = sum(not result.passed for result in report.results)
            say(f"{'caught' if failed else 'MISSED'}: {fault.name} ({failed} of {len(cases)} cases fail)")
            for line in tell(report):
                say(line)
        say(f"{caught} of {tried} planted faults caught on {arguments.device}; {len(FAULTS) - tried} not tried")
    if caught < tried or not clean.passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
