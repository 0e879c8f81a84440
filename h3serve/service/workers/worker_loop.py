"""The worker's side: load the model, run one job at a time, beat, obey, say why it died.

Three threads: this one generates; a reader takes messages, so that Cancel is heard at once; a
beater tells the server that the process still answers. A worker without its server ends itself.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from h3serve.core.errors import Cancelled, H3Error
from h3serve.service.jobs.data_folder import write_result
from h3serve.service.jobs.input_names import by_given_name
from h3serve.service.jobs.job import Json
from h3serve.service.jobs.job_failures import failure_of
from h3serve.service.json_logs import start_logs
from h3serve.service.workers.channel import Channel, Closed
from h3serve.service.workers.messages import (
    Beat,
    Cancel,
    Done,
    Failed,
    JobProgress,
    Load,
    Loaded,
    LoadFailed,
    RunJob,
    Stop,
    Stopped,
    Updated,
    UpdateRefused,
    UpdateWeights,
)
from h3serve.service.workers.output_variants import NAMES, keep_files, write_variants
from h3serve.system.parent_death import end_with_parent

log = logging.getLogger("h3serve.worker")
_LOOK_S = 1.0  # how often an idle worker asks whether its engine is whole

# (stage, step, steps, seconds left or None); raising from it stops the generation.
OnProgress = Callable[[str, int, int, float | None], None]


class WorkerEngine(Protocol):
    """A loaded model: the tasks it serves, seconds and memory peaks of its loading.

    `size_rules` are the fields of core's `SizeRules`, `model_size` those of its `ModelSize` as the weights are held,
    `capacity` those of its `Capacity`, None where nothing is refused.
    """

    tasks: tuple[str, ...]
    load_stats: Json
    size_rules: Json
    model_size: Json
    capacity: Json | None

    @property
    def is_broken(self) -> bool:
        """It can do no further job, because one of its ranks is gone."""
        ...

    def generate(self, request: Json, *, inputs: Path, output: Path, on_progress: OnProgress) -> Json:
        """Write the MP4 at `output` and return the stats; paths in `request` are below `inputs`.

        Stats: `seconds` and `peak_bytes` per stage and the `plan` that was run.
        """
        ...

    def update(self, wanted: Json) -> Json:
        """Take new weights; `wanted` has `source`, `partition`, `tensors` and `only_check`.

        An H3Error means that nothing was changed, a WorkerError that the engine cannot go on.
        """
        ...


def main(build: Callable[[Json], WorkerEngine]) -> None:
    """Serve jobs over the inherited socket whose number is the first argument."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when a worker ends
    start_logs()
    Worker(Channel(socket.socket(fileno=int(sys.argv[1])))).serve(build)


class Worker:
    """One engine behind one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.todo: queue.SimpleQueue[RunJob | UpdateWeights | Stop] = queue.SimpleQueue()
        self.stage, self.stepped_at = "load", time.monotonic()
        self.cancelled: set[str] = set()

    def serve(self, build: Callable[[Json], WorkerEngine]) -> None:
        first = self.channel.receive()
        assert isinstance(first, Load)
        for target, argument in ((self._read, None), (self._beat, first.beat_s)):
            threading.Thread(target=target, args=(argument,), daemon=True).start()
        engine = self._load(build, first.settings)
        while engine is not None and not isinstance(task := self._next(engine), Stop):
            goes_on = self._run(engine, task) if isinstance(task, RunJob) else self._update(engine, task)
            if not goes_on:
                return
            gc.collect()

    def _next(self, engine: WorkerEngine) -> RunJob | UpdateWeights | Stop:
        """What to do next; ends the process when it could do nothing any more, rather than with the next job."""
        while not engine.is_broken:
            with suppress(queue.Empty):
                return self.todo.get(timeout=_LOOK_S)
        log.error("a rank of this worker is gone")
        sys.exit(1)

    def _load(self, build: Callable[[Json], WorkerEngine], settings: Json) -> WorkerEngine | None:
        try:
            engine = build(settings)
        except Exception as error:
            known = isinstance(error, H3Error)
            log.error("the model cannot be loaded", exc_info=not known)
            words = str(error) if known else f"{type(error).__name__}: {error}"
            self.channel.send(LoadFailed(words))
            return None
        self.stage = ""
        held = engine.size_rules, engine.model_size, engine.capacity
        self.channel.send(Loaded(list(engine.tasks), engine.load_stats, *held))
        return engine

    def _run(self, engine: WorkerEngine, run: RunJob) -> bool:
        """Do one job and report how it ended; False when this worker should be replaced."""
        name = (run.job_id, run.attempt)
        try:
            self.channel.send(Done(*name, *self._generate(engine, run)))
            return True
        except Closed:
            raise
        except Cancelled:
            self.channel.send(Stopped(*name))
            return True
        except Exception as error:
            failure = failure_of(by_given_name(error, Path(run.inputs)), self.stage)
            log.error("job failed", extra={"job": run.job_id}, exc_info=failure.leaves)
            self.channel.send(Failed(*name, failure.code, failure.message, failure.leaves, failure.again))
            return not failure.leaves
        finally:
            self.stage = ""
            self.cancelled.discard(run.job_id)

    def _update(self, engine: WorkerEngine, update: UpdateWeights) -> bool:
        """Take new weights and report it; False when this worker should be replaced."""
        self.stage = "update weights"
        try:
            wanted = {name: getattr(update, name) for name in ("source", "partition", "tensors", "only_check")}
            self.channel.send(Updated(update.update_id, engine.update(wanted)))
            return True
        except Closed:
            raise
        except Exception as error:
            failure = failure_of(error, self.stage)
            log.error("weights not updated", extra={"update": update.update_id}, exc_info=failure.leaves)
            self.channel.send(UpdateRefused(update.update_id, failure.message, failure.leaves))
            return not failure.leaves
        finally:
            self.stage = ""

    def _generate(self, engine: WorkerEngine, run: RunJob) -> tuple[Json, Json]:
        def on_progress(stage: str, step: int, steps: int, seconds_left: float | None) -> None:
            self.stage, self.stepped_at = stage, time.monotonic()
            if run.job_id in self.cancelled:
                raise Cancelled("the job was cancelled")
            message = JobProgress(run.job_id, run.attempt, stage, step, steps, seconds_left)
            self.channel.send(message)

        folder = Path(run.attempt_folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        on_progress("start", 0, 1, None)
        video = folder / NAMES["video"]
        stats = engine.generate(run.request, inputs=Path(run.inputs), output=video, on_progress=on_progress)
        on_progress("save", 0, 1, None)
        stats = {**stats, "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        try:
            write_variants(video)
        except Exception:  # a video is not thrown away for want of its thumbnail
            log.exception("no audio or thumbnail", extra={"job": run.job_id})
        files = keep_files(folder)
        write_result(folder, {"stats": stats, "files": files})
        return stats, files

    def _read(self, _: None) -> None:
        try:
            while True:
                message = self.channel.receive()
                if isinstance(message, Cancel):
                    self.cancelled.add(message.job_id)
                elif isinstance(message, RunJob | UpdateWeights | Stop):
                    self.todo.put(message)
        except Closed:
            os._exit(1)  # nobody is left to work for

    def _beat(self, every_s: float) -> None:
        try:
            while True:
                self.channel.send(Beat(self.stage, time.monotonic() - self.stepped_at))
                time.sleep(every_s)
        except Closed:
            os._exit(1)
