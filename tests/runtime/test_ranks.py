"""Four ranks, one of them short of host memory: same hits, same evictions, same bits everywhere."""

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

RANKS = 4
SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from h3serve.runtime.adaln.host_pages import PageCache, page_count
from tests.runtime.stores import write_tiny
from tests.runtime.tiers import SHAPE, CPU, check, schedule, tiers

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
made = write_tiny(folder / "checkpoint")
rank = next((i for i in range(1, ranks) if os.fork() == 0), 0)
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)

def least(count):
    agreed = torch.tensor([count])
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return int(agreed)

page = SHAPE.values * 4
free = 2 * page * (14 if rank == 2 else 100)
count = page_count(SHAPE, torch.float32, limit_bytes=10**9, free_bytes=free, smallest=least)
front = tiers(folder / "checkpoint", made, slots=11, limit=14, pages=count,
              sidecars=folder / "tables", writes=rank == 0)
dist.barrier()
for steps in (schedule(6), schedule(6, shift=5.0), schedule(4), schedule(6), schedule(4)):
    with front.schedule(steps) as ready:
        check(ready, steps, made.modulation)
    dist.barrier()
stats = front.stats()
kept = [stats["slab"][n] for n in ("hits", "misses", "evictions")]
kept += [stats["pages"][n] for n in ("hits", "misses", "evictions")]
(folder / f"rank{rank}.json").write_text(json.dumps([count, kept, sorted(k.hex() for k in front.slab.keys)]))
dist.barrier()
os._exit(0)
"""


def test_ranks_stay_consistent_when_one_has_less_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(RANKS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seen = {(tmp_path / f"rank{rank}.json").read_text() for rank in range(RANKS)}
    assert len(seen) == 1
    assert seen.pop().startswith("[14, ")
