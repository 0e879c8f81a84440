"""Kills a server or its worker at random moments (default: 60 kills, 200 jobs) and checks every promise.

Run from the repository's root: python -m bench.crash [--jobs N] [--kills N] [--seed N]
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.service.chaos import Chaos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("jobs", 200), ("kills", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Chaos(Path(folder) / "data", options.jobs, options.kills, random.Random(options.seed))
        print(run.run(), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
