"""Weight updates with real worker processes and a fake model: all workers or none, and no job is lost."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.error_replies import Refusal
from h3serve.service.jobs.job import Job, Json, State
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.workers.messages import UpdateWeights
from tests.service.workers.test_supervisor import Service, until

Make = Callable[..., Service]


@pytest.fixture
def start(folder: DataFolder, store: JobStore) -> Iterator[Make]:
    made: list[Service] = []

    def start(**more: Any) -> Service:
        made.append(Service(folder, store, "fake", partition="both", **more))
        until(lambda: made[-1].supervisor.is_ready)
        return made[-1]

    yield start
    for service in made:
        service.supervisor.hurry()


def update(service: Service, name: str, **changes: Any) -> Json:
    values = {"update_id": name, "partition": "fl2va", "source": f"/srv/{name}", "tensors": None, "only_check": False}
    return service.supervisor.updates.make(UpdateWeights(**{**values, **changes}))


def film(service: Service, seed: int = 1, prompt: str = "a lion") -> bytes:
    job = service.wait(service.submit(prompt, seed=seed))
    assert job.state is State.COMPLETED, job
    return made_by(service, job)


def made_by(service: Service, job: Job) -> bytes:
    return (service.folder.attempt(job) / "video.mp4").read_bytes()


def test_an_accepted_update_changes_what_is_made_and_tells_what_it_dropped(start: Make) -> None:
    service = start()
    before = film(service)
    done = update(service, "new")
    assert done["workers"] == [{"worker": "worker-0", "dropped": {"slab_keys": 3}, "seconds": 0.1}]
    assert film(service) != before and service.supervisor.updates.made == [done]


def test_a_refused_update_changes_nothing(start: Make) -> None:
    service = start()
    before, pid = film(service), service.supervisor.slots[0].restarts
    with pytest.raises(Refusal, match="another size") as caught:
        update(service, "refused")
    assert caught.value.http_status == 422 and film(service) == before
    assert service.supervisor.slots[0].restarts == pid and not service.supervisor.updates.made


@pytest.mark.parametrize(("name", "why"), [("broken", "broke off"), ("die", "SIGKILL")])
def test_a_lost_worker_comes_back_with_the_weights_from_before(start: Make, name: str, why: str) -> None:
    service = start()
    update(service, "first")
    before = film(service)
    with pytest.raises(Refusal, match=f"{why}.*from before") as caught:
        update(service, name)
    assert caught.value.http_status == 503
    assert film(service) == before and service.supervisor.slots[0].restarts == 1


def test_a_worker_that_dies_later_takes_its_updates_again(start: Make) -> None:
    service = start()
    update(service, "new")
    before = film(service)
    service.wait(service.submit("die"))
    assert film(service) == before and service.supervisor.slots[0].restarts == 2


def test_an_update_waits_for_the_running_job_and_queued_ones_run_afterwards(start: Make) -> None:
    service = start()
    old = film(service)
    running = service.submit("slow 0.2", seed=1)
    queued = [service.submit("a lion", seed=1) for _ in range(3)]
    until(lambda: service.supervisor.slots[0].job is not None)
    update(service, "new")
    assert service.store.get(running.id).state is State.COMPLETED  # type: ignore[union-attr]
    ended = [service.wait(job) for job in (running, *queued)]
    assert [job.state for job in ended] == [State.COMPLETED] * 4
    films = [made_by(service, job) for job in ended]
    assert films[0] == old and old not in films[1:] and len(set(films[1:])) == 1


def test_one_update_at_a_time(start: Make) -> None:
    service = start()
    slow = threading.Thread(target=update, args=(service, "slow"))
    slow.start()
    until(lambda: service.supervisor.updates.is_busy)
    with pytest.raises(Refusal, match="another weight update") as caught:
        update(service, "new")
    slow.join()
    assert caught.value.http_status == 409 and len(service.supervisor.updates.made) == 1


def test_what_one_of_two_workers_cannot_take_none_has(start: Make) -> None:
    service = start(devices=("cpu", "small"))
    update(service, "first")
    before = film(service)
    with pytest.raises(Refusal, match="from before"):
        update(service, "half")
    until(lambda: all(slot.restarts == 1 for slot in service.supervisor.slots) and service.supervisor.is_ready)
    assert {film(service) for _ in range(4)} == {before}


def test_a_stopping_server_answers(start: Make) -> None:
    service = start()
    service.supervisor.drain(5)
    with pytest.raises(Refusal, match="stopping") as caught:
        update(service, "new")
    assert caught.value.http_status == 503


def test_an_added_worker_has_the_updates_of_the_others(start: Make) -> None:
    service = start()
    update(service, "new")
    before = film(service)
    service.supervisor.scale(2)
    service.supervisor.slots[0].leave()
    assert film(service) == before
    assert [slot.name for slot in service.supervisor.staying] == ["worker-1"]


def test_workers_stay_the_same_while_weights_change(start: Make) -> None:
    service = start()
    with service.supervisor.updates.kept_out(), pytest.raises(Refusal) as caught:
        service.supervisor.scale(2)
    assert caught.value.http_status == 409 and len(service.supervisor.slots) == 1
