"""Real worker processes with a fake model, watched by the real supervisor."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import Job, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import ServiceSettings, WorkerRules
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.supervisor import Supervisor
from tests.service.make import put

FAKE = (sys.executable, "-m", "tests.service.fake_worker")
RULES = WorkerRules(beat_s=0.1, silent_s=5.0, stalled_s=2.0, cancel_s=5, restart_s=0.01, restart_max_s=0.1)
Make = Callable[..., "Service"]


class Service:
    """A supervisor with its store, for one test."""

    def __init__(self, folder: DataFolder, store: JobStore, model: str, **more: Any) -> None:
        self.folder, self.store, self.fatal = folder, store, list[str]()
        settings = ServiceSettings(model, worker=more.pop("rules", RULES), **more)
        self.ledger = Ledger(store, folder, Metrics())
        self.supervisor = Supervisor(settings, self.ledger, on_fatal=self.fatal.append, command=FAKE)
        self.supervisor.start()

    def submit(self, prompt: str, **request: Any) -> Job:
        job = put(self.store, request={"prompt": prompt, **request})
        self.folder.accept(job.id)
        self.supervisor.wake()
        return job

    def wait(self, job: Job, *states: State, seconds: float = 60) -> Job:
        wanted = states or (State.COMPLETED, State.FAILED, State.CANCELLED)
        row = until(lambda: (r := self.store.get(job.id)) and r.state in wanted and r, seconds)
        assert isinstance(row, Job)
        return row

    def files(self, job: Job) -> list[str]:
        root = self.folder.job(job.id)
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def until(look: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)
    return seen


@pytest.fixture
def make(folder: DataFolder, store: JobStore) -> Iterator[Make]:
    made: list[Service] = []

    def service(model: str = "fake", **more: Any) -> Service:
        made.append(Service(folder, store, model, **more))
        return made[-1]

    yield service
    for each in made:
        each.supervisor.hurry()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One worker for all tests that leave it as it was, or replaced."""
    folder = DataFolder(tmp_path_factory.mktemp("supervisor") / "data")
    folder.open()
    store = JobStore(folder.default_url)
    service = Service(folder, store, "fake")
    yield service
    service.supervisor.hurry()
    store.close()
    folder.close()


ATTEMPT = ["audio.m4a", "result.json", "thumbnail.jpg", "video.mp4"]


def test_a_job_runs_to_completion(service: Service) -> None:
    row = service.wait(service.submit("a lion", seed=1))
    assert row.state is State.COMPLETED and row.attempts == 1 and row.error is None
    assert service.files(row) == [f"attempt-1/{name}" for name in ATTEMPT]
    assert row.files is not None and set(row.files) == {"video", "audio", "thumbnail"}
    assert row.bytes == sum(f["bytes"] for f in row.files.values())
    assert row.stats is not None and row.stats["seconds"]["denoise"] >= 0
    for line in (
        'h3serve_jobs_total{state="completed",task="t2va"} 1.0',
        'h3serve_memory_peak_bytes{kind="device",phase="denoise"} 2000.0',
    ):
        until(lambda line=line: line in service.ledger.metrics.text().decode())  # counted once the row is written


@pytest.mark.parametrize(
    ("prompt", "code", "words", "restarts"),
    [
        ("wrong", "invalid_request", "prompt: 'wrong' is not usable", 0),
        ("full", "disk_full", "disk is full", 0),
        ("oom", "out_of_memory", "out of memory during denoise", 1),
        ("break", "internal", "internal error during denoise (ValueError)", 1),
        ("die", "worker_lost", "was killed", 2),
        ("hang", "worker_lost", "made no progress in denoise", 2),
        ("stop beating", "worker_lost", "did not answer for 5 s", 2),
        ("rank", "worker_lost", "rank 1 is gone; it was tried 2 times", 2),
        ("device", "worker_lost", "the system failed (EIO) during denoise; it was tried 2 times", 2),
    ],
)
def test_a_bad_job_fails_in_words_and_the_next_is_unaffected(
    service: Service, prompt: str, code: str, words: str, restarts: int
) -> None:
    before = service.supervisor.slots[0].restarts
    bad, good = service.submit(prompt), service.submit("a lion")
    row = service.wait(bad)
    assert row.state is State.FAILED and row.error_code == code
    assert row.error is not None and words in row.error and str(service.folder.root) not in row.error
    assert service.wait(good).state is State.COMPLETED
    assert service.files(bad) == []
    assert service.supervisor.slots[0].restarts - before == restarts


@pytest.mark.parametrize("prompt", ["die once", "rank once", "device once"])
def test_a_lost_job_is_retried_with_the_same_result(service: Service, prompt: str) -> None:
    undisturbed = service.wait(service.submit("a lion", seed=9))
    retried = service.wait(service.submit(prompt, seed=9))
    assert retried.state is State.COMPLETED and retried.attempts == 2
    assert undisturbed.files is not None and retried.files is not None
    assert retried.files["video"]["sha256"] == undisturbed.files["video"]["sha256"]
    assert service.files(retried) == [f"attempt-2/{name}" for name in ATTEMPT]


def test_a_worker_that_can_do_no_further_job_ends_between_two(service: Service) -> None:
    slot, before = service.supervisor.slots[0], service.supervisor.slots[0].restarts
    job = service.wait(service.submit("last job"))
    assert (job.state, job.attempts) == (State.COMPLETED, 1)
    until(lambda: slot.restarts == before + 1 and slot.is_ready)
    job = service.wait(service.submit("a lion"))
    assert (job.state, job.attempts) == (State.COMPLETED, 1)


def test_cancel_takes_effect_within_a_step_and_keeps_the_worker(service: Service) -> None:
    restarts = service.supervisor.slots[0].restarts
    job = service.submit("slow 0.3")
    until(lambda: service.ledger.board.get(job.id))
    began = time.monotonic()
    service.store.request_cancel(job.id)
    service.supervisor.cancel(job.id)
    assert service.wait(job).state is State.CANCELLED
    assert time.monotonic() - began < 0.9
    assert service.files(job) == []
    assert service.wait(service.submit("a lion")).state is State.COMPLETED
    assert service.supervisor.slots[0].restarts == restarts


def test_a_job_that_does_not_stop_loses_its_worker_but_is_cancelled(make: Make) -> None:
    service = make(rules=WorkerRules(beat_s=0.1, cancel_s=0.3, restart_s=0.01))
    job = service.submit("hang")
    until(lambda: service.ledger.board.get(job.id))
    service.store.request_cancel(job.id)
    service.supervisor.cancel(job.id)
    assert service.wait(job).state is State.CANCELLED
    assert service.wait(service.submit("a lion")).state is State.COMPLETED


def test_delete_while_running_leaves_nothing(service: Service) -> None:
    job = service.submit("slow 0.2")
    until(lambda: service.ledger.board.get(job.id))
    service.store.delete(job.id)
    service.supervisor.cancel(job.id)
    until(lambda: service.store.row(job.id) is None)
    until(lambda: not service.folder.job(job.id).exists())


def test_drain_finishes_the_running_job_and_takes_no_other(make: Make) -> None:
    service = make()
    job, later = service.submit("slow 0.1"), service.submit("a lion")
    service.wait(job, State.IN_PROGRESS)
    service.supervisor.drain(20)
    assert service.wait(job).state is State.COMPLETED
    assert service.wait(later, State.QUEUED).attempts == 0
    assert service.supervisor.states()["stopped"] == 1


def test_a_drain_that_takes_too_long_gives_the_job_back(make: Make) -> None:
    service = make()
    job = service.submit("hang")
    service.wait(job, State.IN_PROGRESS)
    service.supervisor.drain(0.1)
    row = service.wait(job, State.QUEUED)
    assert row.attempts == 0 and service.files(job) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("missing", "has no model_index.json"),
        ("load dies", "exited with code 3"),
        ("load breaks", "KeyError: 'transformer'"),
    ],
)
def test_a_first_load_that_fails_says_why_and_ends(make: Make, model: str, words: str) -> None:
    service = make(model)
    until(lambda: service.fatal)
    assert words in service.fatal[0]
    service.supervisor.slots[0].join(20)
    assert not service.supervisor.slots[0].is_alive()


def test_two_devices_run_two_jobs_at_once_and_both_must_have_room(make: Make) -> None:
    service = make(devices=("cpu", "small"), partition="both")
    assert service.supervisor.tasks == ("t2va", "fl2va", "ref2va")
    until(lambda: service.supervisor.is_ready)
    made = [service.submit("slow 0.3") for _ in range(2)]
    until(lambda: all(service.ledger.board.get(job.id) for job in made))
    assert [service.wait(job).state for job in made] == [State.COMPLETED] * 2
    target = {"short_edge": 768, "duration_seconds": 15}
    plan = Plan.resolve(parse_request({"task": "t2va", "prompt": "a", "target": target}))
    with pytest.raises(CapacityError, match=r"14\.00 GiB are usable"):  # either may get a job: it must fit both
        service.supervisor.check_fits(plan)


def test_workers_are_added_and_let_go_while_jobs_run(make: Make) -> None:
    service = make()
    supervisor = service.supervisor
    until(lambda: supervisor.is_ready)
    supervisor.scale(3)
    until(lambda: supervisor.is_ready)
    jobs = [service.submit("slow 0.5") for _ in range(3)]
    until(lambda: all(service.ledger.board.get(job.id) for job in jobs))  # at once
    assert [slot.device for slot in supervisor.slots] == ["auto"] * 3 and supervisor.is_ready
    leaving = supervisor.slots[1:]
    supervisor.scale(1)
    assert supervisor.is_ready and [slot.leaves for slot in supervisor.slots] == [False, True, True]
    rows = [service.wait(job) for job in jobs]
    assert [(row.state, row.attempts) for row in rows] == [(State.COMPLETED, 1)] * 3
    until(lambda: not any(slot.is_alive() for slot in leaving))
    assert sum(supervisor.states().values()) == 1
    assert service.wait(service.submit("a lion")).state is State.COMPLETED
    supervisor.scale(2)
    assert [slot.name for slot in supervisor.slots] == ["worker-0", "worker-3"]
    until(lambda: supervisor.is_ready)


def test_a_worker_without_a_job_goes_before_one_with(make: Make) -> None:
    service = make(devices=("cpu", "cpu"))
    until(lambda: service.supervisor.is_ready)
    job = service.submit("slow 1")
    until(lambda: service.ledger.board.get(job.id))
    service.supervisor.scale(1)
    assert [slot.leaves for slot in service.supervisor.slots] == [slot.job is None for slot in service.supervisor.slots]
    assert service.wait(job).state is State.COMPLETED


def test_an_added_worker_that_cannot_load_fails_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3serve.service.workers.supervisor.check_device", lambda *_: None)  # it was there a moment ago
    service = make()
    until(lambda: service.supervisor.is_ready)
    service.supervisor.scale(2, "absent")
    slot = service.supervisor.slots[1]
    until(lambda: slot.failure)
    assert slot.failure is not None and "1 usable GPUs" in slot.failure
    until(lambda: not slot.is_alive())
    assert service.supervisor.is_ready and not service.fatal
    assert service.wait(service.submit("a lion")).state is State.COMPLETED


@pytest.mark.parametrize(("count", "more"), [(0, {}), (65, {}), (2, {"gpus": 2, "devices": ("cuda",)})])
def test_numbers_of_workers_that_cannot_be(folder: DataFolder, store: JobStore, count: int, more: Any) -> None:
    ledger = Ledger(store, folder, Metrics())
    supervisor = Supervisor(ServiceSettings("fake", **more), ledger, on_fatal=lambda reason: None, command=FAKE)
    with pytest.raises(RequestError, match="1"):
        supervisor.scale(count)
    assert len(supervisor.slots) == 1


def test_a_job_for_another_partition_waits(make: Make) -> None:
    service = make(partition="ref2va")
    assert service.supervisor.tasks == ("ref2va",)
    other, mine = service.submit("x"), put(service.store, task="ref2va", request={"prompt": "x"})
    service.supervisor.wake()
    assert service.wait(mine).state is State.COMPLETED
    assert service.wait(other, State.QUEUED).attempts == 0


def test_progress_is_gone_with_its_job(service: Service) -> None:
    job = service.submit("slow 0.1")
    snapshot = until(lambda: service.ledger.board.get(job.id))
    assert snapshot.steps in (1, 4)
    service.wait(job)
    until(lambda: service.ledger.board.get(job.id) is None)
