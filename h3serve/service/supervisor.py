"""All slots of a server: start, wake, cancel, report, drain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.core.plan import Plan
from h3serve.core.tasks import PARTITION_OF
from h3serve.service.job import Json
from h3serve.service.ledger import Ledger
from h3serve.service.messages import Load
from h3serve.service.process import COMMAND
from h3serve.service.settings import ServiceSettings
from h3serve.service.slot import Slot, SlotState
from h3serve.service.updates import WeightUpdates


class Supervisor:
    """One slot per device of the settings. `on_fatal` hears why a first load failed."""

    def __init__(
        self,
        settings: ServiceSettings,
        ledger: Ledger,
        *,
        on_fatal: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.settings, self.ledger = settings, ledger
        self.slots = [
            Slot(
                f"worker-{number}",
                Load(dict(settings.engine(device)), settings.worker.beat_s),
                ledger,
                rules=settings.worker,
                on_fatal=on_fatal,
                command=command,
            )
            for number, device in enumerate(settings.devices)
        ]
        self.updates = WeightUpdates(self.slots)

    @property
    def tasks(self) -> tuple[str, ...]:
        """What this server serves, known before any model is loaded."""
        wanted = self.settings.partition
        return tuple(task for task, partition in PARTITION_OF.items() if wanted in (partition, "both"))

    @property
    def size_rules(self) -> SizeRules:
        """Those of the checkpoint; until it is loaded, those of the release."""
        return next((slot.size_rules for slot in self.slots if slot.size_rules), RELEASED_SIZES)

    def check_fits(self, plan: Plan) -> None:
        """CapacityError, with the numbers, for a plan that some worker cannot run: any of them may get the job."""
        for slot in self.slots:
            if slot.capacity is not None:
                slot.capacity.check(plan)

    @property
    def is_ready(self) -> bool:
        """Every worker is loaded and alive."""
        return all(slot.is_ready for slot in self.slots)

    def states(self) -> Json:
        """How many workers are in each state."""
        found = Counter(str(slot.state) for slot in self.slots)
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
        self.ledger.board.ring(job_id)

    def drain(self, seconds: float) -> None:
        """Take no new job, let running ones finish for `seconds`, give the rest back, end."""
        for slot in self.slots:
            slot.drain.set()
            slot.wake.set()
        deadline = time.monotonic() + seconds
        for slot in self.slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        self.hurry()

    def hurry(self) -> None:
        """End at once: running jobs go back into the queue."""
        for slot in self.slots:
            slot.drain.set()
            slot.hurry.set()
            slot.wake.set()
        for slot in self.slots:
            if slot.is_alive():
                slot.join()
