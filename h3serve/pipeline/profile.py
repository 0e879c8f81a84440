"""`--profile`: a trace of one generation with a named span for every stage, step and block.

Spans come from outside: stages and steps from the progress reports, blocks from hooks that are there while a trace is
made. Nothing in the pipeline knows of them, so they cost nothing without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from h3serve.core.errors import OutputError
from h3serve.media.write.outputs import replacing
from h3serve.pipeline.engine import Engine
from h3serve.pipeline.generation_progress import OnProgress, Progress
from h3serve.runtime.offload.placement import blocks_of


@contextmanager
def profiled(engine: Engine, target: str | Path, on_progress: OnProgress | None = None) -> Iterator[OnProgress]:
    """Records what runs in the block; when it ends well, `target` is a trace that Chrome and Perfetto open.

    Yields what the generation has to report its progress to, which hands it on to `on_progress`. Of several ranks the
    leading one is seen. OutputError for a failing disk.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if engine.device.type == "cuda" else [])]
    with replacing(target) as part:
        with ExitStack() as stack:
            recorder = stack.enter_context(profile(activities=activities))
            stack.enter_context(_hooks(engine))
            yield stack.enter_context(Spans(on_progress))
        _write(recorder, part, compressed=str(target).endswith(".gz"))


def _write(recorder: Any, part: Path, *, compressed: bool) -> None:
    """The profiler compresses what ends in .gz, and says nothing about a disk that is full."""
    named = part.with_name(part.name + (".json.gz" if compressed else ".json"))
    try:
        recorder.export_chrome_trace(str(named))
        if not named.is_file() or not named.stat().st_size:
            raise OutputError("the trace could not be written")
        named.replace(part)
    finally:
        named.unlink(missing_ok=True)


class Spans:
    """Progress reports as spans: one per stage, in the denoise stage one per evaluation inside it."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._stage, self._step = Span(), Span()

    def __enter__(self) -> Spans:
        return self

    def __exit__(self, *error: object) -> None:
        self._step.end()
        self._stage.end()

    def __call__(self, progress: Progress) -> None:
        """A report is made when a stage begins and before each of its steps."""
        if progress.stage != self._stage.name:
            self._step.end()
            self._stage.begin(progress.stage)
        if progress.stage == "denoise" and progress.steps:
            self._step.end()
            if progress.step < progress.steps:
                self._step.begin(f"step {progress.step + 1} of {progress.steps}")
        if self._on_progress:
            self._on_progress(progress)


class Span:
    """A named piece of the trace that is opened and closed by hand."""

    def __init__(self) -> None:
        self.name, self._open = "", ExitStack()

    def begin(self, name: str) -> None:
        """Ends the one before."""
        self.end()
        self.name = name
        self._open.enter_context(record_function(name))

    def end(self) -> None:
        """Nothing if none is open."""
        self.name = ""
        self._open.close()


@contextmanager
def _hooks(engine: Engine) -> Iterator[None]:
    """A span around every block of the networks that have blocks."""
    networks = {"text_encoder": engine.text_encoder, "video_vae": engine.video_vae}
    several = [("transformer", denoiser) for denoiser in engine.denoisers.values()]
    handles: list[RemovableHandle] = []
    try:
        for name, network in [*networks.items(), *several]:
            for number, block in enumerate(blocks_of(network, name)):
                handles += _around(block, f"{name} block {number}")
        yield
    finally:
        for handle in handles:
            handle.remove()


def _around(block: nn.Module, name: str) -> list[RemovableHandle]:
    span = Span()

    def before(*_: object) -> None:
        span.begin(name)

    def after(*_: object) -> None:
        span.end()

    return [block.register_forward_pre_hook(before), block.register_forward_hook(after, always_call=True)]
