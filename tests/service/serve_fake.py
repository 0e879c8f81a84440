"""A real server whose workers have a fake model; settings come as JSON in the first argument.

Beside the service's there are `descriptors`, so many files are open from the start on, and `slow_death`: a killed
worker seems to live for up to so many seconds.
"""

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

from h3serve.core.errors import H3Error
from h3serve.prompts.endpoint import EnhanceSettings
from h3serve.service.http.server import serve
from h3serve.service.service_settings import BodyLimits, ConnectionLimits, Retention, ServiceSettings, WorkerRules
from h3serve.service.workers import watchdog, worker_process
from tests.service.slow_death import slowly

FAKE = (sys.executable, "-m", "tests.service.fake_worker")
KINDS = {
    "retention": Retention,
    "worker": WorkerRules,
    "limits": BodyLimits,
    "connections": ConnectionLimits,
    "enhance": EnhanceSettings,
}


def main() -> None:
    values = json.loads(sys.argv[1])
    if (most := values.pop("open_files", None)) is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))  # the server may raise the first
    for name, kind in KINDS.items():
        if name in values:
            values[name] = kind(**values[name])
    for name in ("data", "keys", "webhook_secret", "weights", "adapter_folder"):
        if name in values:
            values[name] = Path(values[name])
    if files := values.pop("descriptors", 0):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for _ in range(files):
        os.open(os.devnull, os.O_RDONLY)
    die_slowly(values.pop("slow_death", 0.0))
    values["devices"] = tuple(values.get("devices", ("cpu",)))
    values["allowed_hosts"] = tuple(values.get("allowed_hosts", ()))
    values["folders"] = tuple(map(Path, values.get("folders", ())))
    try:
        serve(ServiceSettings(**values), command=FAKE)
    except H3Error as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def die_slowly(seconds: float) -> None:
    """Workers end up to so late, and what waits for their end has less patience than some of them need."""
    if seconds:
        subprocess.Popen = slowly(lambda: random.uniform(0.0, seconds))  # type: ignore[misc]
        worker_process._REAP_S = watchdog._EXIT_S = seconds / 4


if __name__ == "__main__":
    main()
