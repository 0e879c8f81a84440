"""Every message between the server and a worker, by direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from h3serve.service.jobs.job import Json

# --- server to worker ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The first message: make the engine. `settings` is what its builder takes."""

    settings: Json
    beat_s: float = 1.0


@dataclass(frozen=True)
class RunJob:
    """Generate one job: inputs are read below `inputs`, files written into `attempt_folder`."""

    job_id: str
    attempt: int
    request: Json
    inputs: str
    attempt_folder: str


@dataclass(frozen=True)
class Cancel:
    """Stop this job at its next step; nothing happens if another one runs."""

    job_id: str


@dataclass(frozen=True)
class UpdateWeights:
    """Take new weights between two jobs, or say why not; with `only_check` nothing is changed.

    `source` and `tensors` are paths that the worker can read.
    """

    update_id: str
    partition: str
    source: str
    tensors: str | None
    only_check: bool


@dataclass(frozen=True)
class Stop:
    """Finish what runs, then exit."""


# --- worker to server ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """The model is ready for `tasks`; `stats` holds seconds and memory peaks of loading.

    `size_rules` are the fields of core's `SizeRules` as the checkpoint has them, `capacity` those of
    its `Capacity`, None where nothing is refused, `model_size` those of its `ModelSize`.
    """

    tasks: list[str]
    stats: Json = field(default_factory=dict)
    size_rules: Json = field(default_factory=dict)
    model_size: Json = field(default_factory=dict)
    capacity: Json | None = None


@dataclass(frozen=True)
class LoadFailed:
    """The model cannot be loaded; the worker exits."""

    message: str


@dataclass(frozen=True)
class Beat:
    """Still answering; `idle_s` is how long ago the running job last reported a step."""

    stage: str
    idle_s: float


@dataclass(frozen=True)
class JobProgress:
    """A step of a job; `seconds_left` is None while nobody can know."""

    job_id: str
    attempt: int
    stage: str
    step: int
    steps: int
    seconds_left: float | None


@dataclass(frozen=True)
class Done:
    """The attempt is whole on disk."""

    job_id: str
    attempt: int
    stats: Json
    files: Json


@dataclass(frozen=True)
class Stopped:
    """The job ended because of Cancel; nothing was kept."""

    job_id: str
    attempt: int


@dataclass(frozen=True)
class Failed:
    """The job cannot be done; `leaves` says that the worker exits to be replaced, `again` that another may succeed."""

    job_id: str
    attempt: int
    code: str
    message: str
    leaves: bool
    again: bool


@dataclass(frozen=True)
class Updated:
    """The update is made, or would be; `report` says what was dropped with the old weights."""

    update_id: str
    report: Json


@dataclass(frozen=True)
class UpdateRefused:
    """Nothing was changed, unless `leaves`: then the weights are of two checkpoints and the worker exits."""

    update_id: str
    message: str
    leaves: bool


ToWorker = Load | RunJob | Cancel | UpdateWeights | Stop
ToServer = Loaded | LoadFailed | Beat | JobProgress | Done | Stopped | Failed | Updated | UpdateRefused
Message = ToWorker | ToServer
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
