"""What the terminal shows: a live line per stage on a terminal, plain lines otherwise; errors in one line."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars


class Shown(Protocol):
    """What is shown of a generation here or of a video on a server: `step` of `steps` are done."""

    @property
    def stage(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def seconds_left(self) -> float | None: ...


ERRORS = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


class ProgressLines:
    """Plain progress for logs and pipes: a line per stage, and one per evaluation, at most one a second."""

    def __init__(self) -> None:
        self._stage, self._told = "", 0.0

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, progress: Shown) -> None:
        new, last = progress.stage != self._stage, progress.step == progress.steps
        if not new and (progress.step == 0 or (not last and time.monotonic() - self._told < 1.0)):
            return
        self._stage, self._told = progress.stage, time.monotonic()
        sys.stderr.write(describe(progress) + "\n")
        sys.stderr.flush()


class ProgressBar:
    """One line that is redrawn: stage, step k/n, seconds left."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description:18}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
        )
        self._task = self._bars.add_task("", text="")
        self._stage = ""

    def __enter__(self) -> ProgressBar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, progress: Shown) -> None:
        if progress.stage != self._stage and self._stage:
            self._bars.update(self._task, completed=self._bars.tasks[-1].total, text="done")
            self._task = self._bars.add_task("", text="")
        self._stage = progress.stage
        text = describe(progress).removeprefix(progress.stage).strip()
        self._bars.update(
            self._task,
            description=progress.stage,
            completed=progress.step,
            total=progress.steps or None,
            text=text,
        )


def progress_display() -> ProgressLines | ProgressBar:
    """The display that suits where stderr goes."""
    return ProgressBar() if sys.stderr.isatty() else ProgressLines()


def describe(progress: Shown) -> str:
    """`denoise 12/50, 33 s left`."""
    text = progress.stage
    if progress.steps:
        text += f" {progress.step}/{progress.steps}"
    if progress.seconds_left is not None:
        text += f", {progress.seconds_left:.0f} s left"
    return text


def say(text: str) -> None:
    """A line on stdout: the command's result."""
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """A one-line error on stderr."""
    ERRORS.print("h3serve: " + " ".join(text.split()))
