"""The worker process of a real server: owns one H3 model. The only file here that imports the pipeline."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from h3serve.service.jobs.job import Json
from h3serve.service.workers.worker_loop import OnProgress, main


class H3Engine:
    """`Generator` as a worker's engine; `settings` are the fields of core's `EngineSettings`."""

    def __init__(self, settings: Json) -> None:
        # Only now: the process beats and can be cancelled while these load.
        from h3serve.pipeline.generator import Generator

        began = time.monotonic()
        self.generator = Generator.from_pretrained(**settings)
        engine = self.generator.engine
        self.tasks: tuple[str, ...] = engine.tasks
        self.size_rules: Json = asdict(engine.rules)
        self.model_size: Json = asdict(engine.size)
        self.capacity: Json | None = asdict(engine.capacity) if engine.capacity else None
        self.load_stats: Json = {"seconds": round(time.monotonic() - began, 3), **self.generator.replica.describe()}
        if engine.device.type == "cuda":
            self.load_stats["peak_bytes"] = engine.peaks.load_peak
        engine.prepare()
        if engine.device.type == "cuda":
            self.generator.warm_up()

    @property
    def is_broken(self) -> bool:
        return self.generator.replica.is_broken

    def generate(self, request: Json, *, inputs: Path, output: Path, on_progress: OnProgress) -> Json:
        conditions = [{**c, "uri": str(inputs / c["uri"])} for c in request["conditions"]]

        def report(progress: Any) -> None:
            on_progress(progress.stage, progress.step, progress.steps, progress.seconds_left)

        body = {**request, "conditions": conditions}
        return dict(self.generator.generate(body, on_progress=report, output=output).stats)

    def update(self, wanted: Json) -> Json:
        return self.generator.update_weights(**wanted)


if __name__ == "__main__":
    main(H3Engine)
