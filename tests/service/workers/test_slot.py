"""A slot outlives whatever its worker does, and says so truly."""

import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import WorkerRules
from h3serve.service.workers import slot as slot_module
from h3serve.service.workers import watchdog as watchdog_module
from h3serve.service.workers import worker_process as process_module
from h3serve.service.workers.channel import Channel, Closed
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.messages import Beat, Cancel, Done, JobProgress, Load, Message, RunJob
from h3serve.service.workers.slot import Slot, SlotState
from h3serve.service.workers.watchdog import Watchdog, WorkerLost
from h3serve.service.workers.worker_process import WorkerProcess
from tests.service.make import put, take, whole_attempt
from tests.service.slow_death import slowly
from tests.service.workers.test_supervisor import FAKE, Service, until

Make = Callable[..., Service]
RULES = WorkerRules(beat_s=0.1, silent_s=5.0, exit_s=20.0, restart_s=0.01, restart_max_s=0.05)


@pytest.fixture
def make(folder: DataFolder, store: JobStore) -> Iterator[Make]:
    made: list[Service] = []

    def service(model: str = "fake", **more: Any) -> Service:
        made.append(Service(folder, store, model, **{"rules": RULES, **more}))
        until(lambda: made[-1].supervisor.is_ready)
        return made[-1]

    yield service
    for each in made:
        each.supervisor.hurry()


def impatient(monkeypatch: pytest.MonkeyPatch, process: type[Any]) -> None:
    """Workers are processes of this kind, and those that wait for their end wait a tenth of a second."""
    monkeypatch.setattr(subprocess, "Popen", process)
    for module, name in ((process_module, "_REAP_S"), (watchdog_module, "_EXIT_S"), (slot_module, "_EXIT_S")):
        monkeypatch.setattr(module, name, 0.1)


def test_a_worker_that_is_slow_to_end_is_replaced_once_it_has(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, slowly(lambda: 0.7))
    service = make()
    slot, pids = service.supervisor.slots[0], list[int]()
    monkeypatch.setattr(process_module.WorkerProcess, "__init__", _noting(pids))
    job = service.submit("die once")
    until(lambda: slot.restarts == 0 and not slot.is_ready)
    assert not service.supervisor.is_ready and slot.is_alive() and not pids  # the next one would find no memory
    assert service.wait(job).state is State.COMPLETED
    assert service.supervisor.is_ready and slot.restarts == 1 and len(pids) == 1


def _noting(pids: list[int]) -> Callable[..., None]:
    begin = WorkerProcess.__init__

    def noting(self: WorkerProcess, *arguments: Any) -> None:
        begin(self, *arguments)
        pids.append(self.pid)

    return noting


def test_a_worker_that_never_ends_is_left_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, slowly(lambda: 1e9))
    service = make(rules=WorkerRules(beat_s=0.1, exit_s=0.2, restart_s=0.01))
    assert service.wait(service.submit("die once")).state is State.COMPLETED
    began = time.monotonic()
    service.supervisor.hurry()
    assert time.monotonic() - began < 5 and not service.supervisor.slots[0].is_alive()


def test_its_words_say_that_it_did_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_REAP_S", 0.05)
    monkeypatch.setattr(subprocess, "Popen", slowly(lambda: 0.5))
    worker = WorkerProcess(Load({"model": "load slow", "partition": "fl2va"}), FAKE)
    assert "had not ended 0.05 s later" in worker.end()
    assert not worker.is_gone
    until(lambda: worker.is_gone, 5)


def test_a_worker_that_hangs_up_before_it_is_told_anything_is_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    slot, begin = service.supervisor.slots[0], subprocess.Popen
    failures = ["true", "false", "/no/such/program"]

    def once(command: Any, **more: Any) -> Any:
        if not failures:
            return begin(command, **more)
        started = begin([failures.pop()], **more)
        started.wait()  # so that the channel is closed before the first message
        return started

    monkeypatch.setattr(subprocess, "Popen", once)
    job = service.submit("die once")
    assert service.wait(job).state is State.COMPLETED and not failures and not service.fatal
    assert slot.is_alive() and slot.restarts == 4


def test_a_worker_that_has_ended_before_it_was_told_anything_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = subprocess.Popen

    def ended(command: Any, **more: Any) -> Any:
        started = begin(["false"], **more)
        started.wait()
        return started

    monkeypatch.setattr(subprocess, "Popen", ended)
    worker = WorkerProcess(Load({"model": "fake"}), FAKE)
    with pytest.raises(WorkerLost, match="exited with code 1"):
        Watchdog(worker, RULES).receive(5)


def test_no_descriptor_is_left_of_workers_that_could_not_be_started() -> None:
    before = resource_count()
    caught = []
    for _ in range(5):
        with pytest.raises(OSError, match="/no/such") as error:
            WorkerProcess(Load({}), ("/no/such/program",))
        caught.append(error)  # what is on its stack stays
    assert resource_count() == before and len(caught) == 5


def resource_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_dead_slot_is_not_ready_and_is_replaced_when_workers_are_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(devices=("cpu", "cpu"))
    supervisor = service.supervisor
    dying, healthy = supervisor.slots
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(dying.ledger, "claim", _ending_the_thread(dying, dying.ledger.claim))
    until(lambda: not dying.is_alive())
    dying.state = SlotState.IDLE  # whatever it said last
    assert not supervisor.is_ready and not dying.is_ready
    supervisor.scale(2)
    assert dying not in supervisor.slots and healthy in supervisor.slots and len(supervisor.slots) == 2
    until(lambda: supervisor.is_ready)
    supervisor.scale(1)
    assert len(supervisor.staying) == 1 and supervisor.staying[0].is_ready
    assert service.wait(service.submit("a lion")).state is State.COMPLETED


def _ending_the_thread(slot: Slot, claim: Any) -> Any:
    def ending(tasks: Any) -> Any:
        if threading.current_thread() is slot:
            raise SystemExit  # nothing less ends a slot
        return claim(tasks)

    return ending


def test_an_error_of_our_own_costs_a_worker_and_no_slot(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make()
    slot, take_updates, errors = service.supervisor.slots[0], SlotTake(), [OSError("disk"), KeyError("x")]

    def failing(watchdog: Watchdog) -> bool:
        if errors:
            raise errors.pop()
        return take_updates(watchdog)

    monkeypatch.setattr(slot.updates, "take", failing)
    until(lambda: slot.restarts == 2 and slot.is_ready)
    assert service.wait(service.submit("a lion")).state is State.COMPLETED


class SlotTake:
    """Nothing waits."""

    def __call__(self, watchdog: Watchdog) -> bool:
        return True


def test_a_channel_above_the_1023rd_descriptor_works() -> None:
    """`select` raises ValueError for descriptors from 1024 (FD_SETSIZE) on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1400:
        pytest.skip("the system allows too few descriptors")
    with ExitStack() as stack:
        if soft < 1400:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1400, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path("/dev/null").open())
        ours, theirs = socket.socketpair()
        assert ours.fileno() > 1023
        near, far = Channel(ours), Channel(theirs)
        assert near.receive(0) is None
        far.send(Beat("x", 1.0))
        assert near.receive(5) == Beat("x", 1.0)
        worker = WorkerProcess(Load({"model": "fake", "partition": "fl2va"}), FAKE)
        try:
            assert worker.channel.fileno() > 1023
            assert worker.channel.receive(30) is not None
        finally:
            worker.end()
            near.close()
            far.close()


class Scripted:
    """A worker's process that says what it is told to."""

    pid = 0

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel, self.far = Channel(ours), Channel(theirs)
        self.ended = 0

    def end(self, grace_s: float = 0.0) -> str:
        self.ended += 1
        return "the worker was ended"


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    worker = Scripted()
    yield worker
    worker.channel.close()
    worker.far.close()


def test_a_worker_that_does_not_read_is_lost(scripted: Scripted) -> None:
    watchdog = Watchdog(scripted, WorkerRules(silent_s=0.2))  # type: ignore[arg-type]
    with pytest.raises(WorkerLost, match=r"did not read for 0\.2 s"):
        watchdog.send(RunJob("j", 1, {"prompt": "x" * 3_000_000}, "in", "out"))
    assert scripted.ended == 1


@pytest.mark.parametrize(("idle_s", "job_s", "is_lost"), [(1801.0, 0.0, False), (1801.0, 1802.0, True)])
def test_the_time_before_a_job_is_not_counted_as_a_stall(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, idle_s: float, job_s: float, is_lost: bool
) -> None:
    """Patience with a step is 30 minutes, from the job's begin on, however long the worker had nothing to do."""
    watchdog = Watchdog(scripted, WorkerRules())  # type: ignore[arg-type]
    watchdog.job_begins()
    now = time.monotonic()
    monkeypatch.setattr("h3serve.service.workers.watchdog.time.monotonic", lambda: now + job_s)
    scripted.far.send(Beat("", idle_s))
    if is_lost:
        with pytest.raises(WorkerLost, match="no progress"):
            watchdog.receive(1)
    else:
        assert watchdog.receive(1) == Beat("", idle_s)
    assert scripted.ended == is_lost


def test_what_an_earlier_attempt_or_another_job_says_means_nothing(
    folder: DataFolder, store: JobStore, scripted: Scripted
) -> None:
    put(store)
    first = take(store)
    store.requeue(first.id, counts=True)
    job = take(store)
    assert job.attempts == 2
    ledger = Ledger(store, folder, Metrics())
    slot = Slot("worker-0", Load({"device": "cpu"}), ledger, rules=RULES, on_fatal=pytest.fail)
    files: Any = whole_attempt(folder, job)["files"]
    late: list[Message] = [
        Done(job.id, 1, {"late": 1}, {}),
        Done("video_other", 2, {"late": 2}, {}),
        JobProgress(job.id, 1, "late", 1, 2, None),
    ]
    for message in (*late, Done(job.id, 2, {"seconds": {}}, files)):
        scripted.far.send(message)
    assert slot._watch(Watchdog(scripted, RULES), job)  # type: ignore[arg-type]
    row = store.get(job.id)
    assert row is not None and row.state is State.COMPLETED
    assert row.stats == {"seconds": {}} and row.files == files and folder.attempt(row).exists()
    told = []
    while (message := scripted.far.receive(0)) is not None:
        told.append(type(message))
    assert told == [RunJob] and Cancel not in told


def test_a_closed_channel_is_closed_for_both_directions(scripted: Scripted) -> None:
    scripted.channel.close()
    for use in (lambda: scripted.channel.send(Beat("", 0.0), 1), lambda: scripted.channel.receive(1)):
        with pytest.raises(Closed):
            use()
