"""The thread that tidies up from time to time: retention, the database's log, the room kept for a full disk."""

from __future__ import annotations

import logging
import threading

from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.jobs.retention import expire
from h3serve.service.service_settings import Retention

log = logging.getLogger("h3serve.retention")


class Janitor(threading.Thread):
    """Every `every_s` seconds until `stop` is set."""

    def __init__(self, store: JobStore, folder: DataFolder, rule: Retention, *, every_s: float) -> None:
        super().__init__(name="caretaker", daemon=True)
        self.store, self.folder, self.rule, self.every_s = store, folder, rule, every_s
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(self.every_s):
            for task in (self._expire, self.store.checkpoint, self.folder.reserve.take):
                try:
                    task()
                except Exception:  # the next round may find the database free again
                    log.exception("tidying failed")

    def _expire(self) -> None:
        touched = expire(self.store, self.folder, self.rule)
        if touched:
            log.info("files given up", extra={"jobs": touched})
