"""All slots of a server: start, wake, cancel, report, drain."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from h3serve.core.errors import RequestError
from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize
from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.core.limits import PARTITION_OF
from h3serve.core.plan import Plan
from h3serve.service.jobs.job import Json
from h3serve.service.service_settings import ServiceSettings
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.messages import Load
from h3serve.service.workers.slot import Slot, SlotState
from h3serve.service.workers.worker_process import COMMAND
from h3serve.service.workers.worker_room import check_device, check_memory, check_shared_gpus, emptiest
from h3serve.service.workers.worker_updates import WeightUpdates

log = logging.getLogger("h3serve.supervisor")
MOST_WORKERS = 64  # a slip of the hand, beyond
_WRITE_S = 30.0  # at the very end, for what has to be written down


class Supervisor:
    """One slot per device of the settings, more or fewer once `scale` was called.

    `on_fatal` hears why a first load failed; that of a worker that was added later fails alone.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        ledger: Ledger,
        *,
        on_fatal: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.settings, self.ledger, self.command = settings, ledger, command
        self._numbers = count()
        self.slots = [self._new(device, on_fatal) for device in settings.devices]
        self.updates = WeightUpdates(lambda: self.staying)

    @property
    def staying(self) -> list[Slot]:
        """Slots that are to take jobs: neither told to leave nor unable to load."""
        return [slot for slot in self.slots if not slot.leaves]

    def scale(self, workers: int, device: str | None = None) -> None:
        """Add workers, or let some go, until `workers` stay; who goes finishes its job first.

        A slot that has died is replaced.
        New ones are on `device`, or else where the fewest of the settings' devices are, and take the weights that the
        others have. RequestError or CapacityError for what cannot be had, Refusal 409 while weights are updated.
        """
        several = self.settings.gpus > 1 and self.settings.ray is None and set(self.settings.devices) != {"cpu"}
        if workers < 1 or workers > (1 if several else MOST_WORKERS):
            allowed = "1: several replicas of several GPUs need Ray" if several else f"1 to {MOST_WORKERS}"
            raise RequestError("count", workers, allowed)
        with self.updates.kept_out():
            self.slots = [slot for slot in self.slots if slot.is_alive() or not (slot.leaves or slot.has_died)]
            staying = self.staying
            self._check_room(staying, workers, device)
            for slot in sorted(staying, key=_reluctance)[: max(0, len(staying) - workers)]:
                slot.leave()
            for _ in range(len(staying), workers):
                there = [slot.device for slot in self.staying]
                slot = self._new(device or emptiest(there, self.settings.devices), _add_failed)
                for other in staying[:1]:
                    slot.updates.inherit(other.updates)
                self.slots = [*self.slots, slot]
                slot.start()

    def _check_room(self, staying: Sequence[Slot], workers: int, device: str | None) -> None:
        """Refuse a device that is not here, and more workers than the machine holds; on Ray the cluster decides.

        As many as the server was started with are the operator's choice.
        """
        started = self.settings.devices
        if device is not None:
            check_device(device, started)
        more = workers - len(staying)
        if more <= 0 or self.settings.ray is not None:
            return
        there = [slot.device for slot in staying]
        for _ in range(more):
            there.append(device or emptiest(there, started))
        check_shared_gpus(there, started)
        if (beyond := workers - max(len(staying), len(started))) > 0:
            check_memory(beyond, loaded=sum(slot.is_ready for slot in staying))

    def _new(self, device: str, on_fatal: Callable[[str], None]) -> Slot:
        return Slot(
            f"worker-{next(self._numbers)}",
            Load(dict(self.settings.engine(device)), self.settings.worker.beat_s),
            self.ledger,
            rules=self.settings.worker,
            on_fatal=on_fatal,
            command=self.command,
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """What this server serves, known before any model is loaded."""
        wanted = self.settings.partition
        return tuple(task for task, partition in PARTITION_OF.items() if wanted in (partition, "both"))

    @property
    def size_rules(self) -> SizeRules:
        """Those of the checkpoint; until it is loaded, those of the release."""
        return next((slot.size_rules for slot in self.slots if slot.size_rules), RELEASED_SIZES)

    @property
    def model_size(self) -> ModelSize:
        """That of the checkpoint as it is held; until it is loaded, that of the release."""
        return next((slot.model_size for slot in self.slots if slot.model_size), RELEASED_MODEL)

    def check_fits(self, plan: Plan) -> None:
        """CapacityError, with the numbers, for a plan that some worker cannot run: any of them may get the job."""
        for slot in self.staying:
            if slot.capacity is not None:
                slot.capacity.check(plan)

    @property
    def is_ready(self) -> bool:
        """Every worker that stays is loaded and alive."""
        staying = self.staying
        return bool(staying) and all(slot.is_ready for slot in staying)

    def states(self) -> Json:
        """How many workers are in each state; who left is not counted."""
        found = Counter(str(slot.state) for slot in self.slots if slot.is_alive() or not slot.leaves)
        return {str(state): found.get(str(state), 0) for state in SlotState}

    def start(self) -> None:
        for slot in self.slots:
            slot.start()

    def wake(self) -> None:
        """A job was queued."""
        for slot in self.slots:
            slot.wake.set()

    def cancel(self, job_id: str) -> None:
        """A running job's cancellation is in the store: tell the slot that runs it."""
        for slot in self.slots:
            slot.cancel(job_id)

    def drain(self, seconds: float) -> None:
        """Take no new job, let running ones finish for `seconds`, give the rest back, end."""
        for slot in self.slots:
            slot.drain.set()
            slot.wake.set()
        self._join(seconds)
        self.hurry()

    def hurry(self) -> None:
        """End at once: running jobs go back into the queue."""
        for slot in self.slots:
            slot.drain.set()
            slot.hurry.set()
            slot.wake.set()
        self._join(_WRITE_S)
        self.ledger.stop.set()  # a database that cannot be written holds nobody up: the next start recovers
        self._join(None)

    def _join(self, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        for slot in self.slots:
            if slot.is_alive():
                slot.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def _reluctance(slot: Slot) -> tuple[int, int]:
    """Who goes first: one that is not ready, then one without a job, and of equals the newest."""
    return slot.is_ready + (slot.state is SlotState.BUSY), -int(slot.name.rpartition("-")[2])


def _add_failed(reason: str) -> None:
    log.error("a worker that was added is given up", extra={"cause": reason})
