"""A real server whose workers have a fake model; settings come as JSON in the first argument."""

import json
import resource
import sys
from pathlib import Path

from h3serve.core.errors import H3Error
from h3serve.service.server import serve
from h3serve.service.settings import BodyLimits, ConnectionLimits, Retention, ServiceSettings, WorkerRules

FAKE = (sys.executable, "-m", "tests.service.fake_worker")
KINDS = {"retention": Retention, "worker": WorkerRules, "limits": BodyLimits, "connections": ConnectionLimits}


def main() -> None:
    values = json.loads(sys.argv[1])
    if (most := values.pop("open_files", None)) is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))  # the server may raise the first
    for name, kind in KINDS.items():
        if name in values:
            values[name] = kind(**values[name])
    for name in ("data", "keys", "webhook_secret", "weights"):
        if name in values:
            values[name] = Path(values[name])
    values["devices"] = tuple(values.get("devices", ("cpu",)))
    values["allowed_hosts"] = tuple(values.get("allowed_hosts", ()))
    values["folders"] = tuple(map(Path, values.get("folders", ())))
    try:
        serve(ServiceSettings(**values), command=FAKE)
    except H3Error as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
