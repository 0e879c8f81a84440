"""A worker with a fake model: real messages, real files, no network weights.

The first words of a prompt say what happens: `die`, `hang`, `stop beating`, `rank` (one is gone), `device`, `oom`,
`wrong`, `unreadable` (its first input), `break`, `full`, `slow N` (seconds per step), `last job` (a rank goes
afterwards); with `once` at the first attempt only. The model's name says how loading goes, and that of an update's
source how the update goes: `refused`, `broken`, `die`, `half` (breaks on the device `small` only), `slow`; any other
one changes every film that is made afterwards.
"""

import errno
import logging
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from h3serve.core.errors import CheckpointError, RequestError, WorkerError
from h3serve.core.estimate_memory import Capacity, Tiles
from h3serve.core.estimate_work import GIB, RELEASED_MODEL
from h3serve.core.geometry import RELEASED_SIZES
from h3serve.core.limits import PARTITION_OF
from h3serve.media.sources.media_file import MediaFile
from h3serve.media.write.mp4_writer import mp4_writer
from h3serve.service.jobs.job import Json
from h3serve.service.workers.worker_loop import OnProgress, main

log = logging.getLogger("fake")
STEPS = 4
SIDE, FRAMES = 64, 12
SMALL = Capacity({"denoise": 8 * GIB}, usable=14 * GIB, free=15 * GIB, tiles=Tiles(GIB, GIB // 14, GIB))


class FakeEngine:
    def __init__(self, settings: Json) -> None:
        self.partition, self.device, self.shift = settings["partition"], settings.get("device"), 0
        self.tasks = tuple(task for task, p in PARTITION_OF.items() if self.partition in (p, "both"))
        self.load_stats = {"seconds": 0.01, "peak_bytes": 1000}
        self.size_rules: Json = asdict(RELEASED_SIZES)
        self.model_size: Json = asdict(RELEASED_MODEL)
        self.capacity: Json | None = asdict(SMALL) if settings.get("device") == "small" else None
        self.is_broken = False

    def generate(self, request: Json, *, inputs: Path, output: Path, on_progress: OnProgress) -> Json:
        prompt = str(request.get("prompt", ""))
        given = [(inputs / c["uri"]).read_bytes() for c in request.get("conditions", ())]
        started = time.monotonic()
        for step in range(STEPS):
            on_progress("denoise", step, STEPS, 0.1 * (STEPS - step))
            if step == 1:
                misbehave(prompt, output)
            if prompt.startswith("slow"):
                time.sleep(float(prompt.split()[1]))
        self.is_broken = prompt.startswith("last job")
        on_progress("decode video", 0, 1, None)
        write(output, int(request.get("seed", 0)) + sum(map(len, given)) + self.shift)
        return {"seconds": {"denoise": time.monotonic() - started}, "peak_bytes": {"denoise": 2000}}

    def update(self, wanted: Json) -> Json:
        name = Path(wanted["source"]).name
        if name == "refused":
            raise CheckpointError(f"{wanted['source']} is of another size than the served model")
        if wanted["only_check"]:
            return {"dropped": {}}
        if name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "broken" or (name == "half" and self.device == "small"):
            self.shift = -1
            raise WorkerError("the update broke off")
        if name == "slow":
            time.sleep(0.5)
        self.shift = sum(name.encode()) * 1000
        return {"dropped": {"slab_keys": 3}, "seconds": 0.1}


def misbehave(prompt: str, output: Path) -> None:
    (output.parent / "half.partial").write_text("half")
    if " once" in prompt and output.parent.name != "attempt-1":
        return
    if prompt.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if prompt.startswith("hang"):
        time.sleep(600)
    if prompt.startswith("stop beating"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if prompt.startswith("rank"):
        raise WorkerError("rank 1 is gone")
    if prompt.startswith("device"):
        raise OSError(errno.EIO, "Input/output error", str(output))
    if prompt.startswith("oom"):
        raise MemoryError
    if prompt.startswith("wrong"):
        raise RequestError("prompt", "wrong", "anything else")
    if prompt.startswith("unreadable"):
        inputs = output.parent.parent / "inputs"
        raise MediaFile(inputs / "00.png", "conditions[0]", str(inputs / "00.png")).error("the picture is damaged")
    if prompt.startswith("break"):
        raise ValueError(f"a secret path {output}")
    if prompt.startswith("full"):
        raise OSError(errno.ENOSPC, "No space left on device", str(output))
    (output.parent / "half.partial").unlink()


def write(output: Path, seed: int, *, frames: int = FRAMES) -> None:
    """A small film that depends on the seed alone."""
    noise = np.random.default_rng(seed)
    pictures = noise.integers(0, 255, (frames, SIDE, SIDE, 3), dtype=np.uint8)
    wave = noise.uniform(-0.1, 0.1, (2, frames * 32000 // 24)).astype(np.float32)
    with mp4_writer(output, width=SIDE, height=SIDE, num_frames=frames, preset="ultrafast") as film:
        film.write_audio(wave)
        film.write_frames(pictures)


def build(settings: Json) -> FakeEngine:
    how = str(settings["model"])
    log.info("worker starts", extra={"pid": os.getpid()})
    if settings.get("device") == "absent":
        raise RequestError("device", "absent", "this machine has 1 usable GPUs")
    if how == "missing":
        raise CheckpointError("the model folder /srv/models/missing has no model_index.json")
    if how == "load dies":
        os._exit(3)
    if how == "load breaks":
        raise KeyError("transformer")
    for _ in range(1100 if how == "many files" else 0):
        os.open(os.devnull, os.O_RDONLY)
    if how == "load slow":
        time.sleep(600)
    return FakeEngine(settings)


if __name__ == "__main__":
    main(build)
