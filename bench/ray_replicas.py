"""Jobs on three replicas over a Ray cluster of three nodes on one host, PostgreSQL as job store; one node is killed.

    python -m bench.ray_replicas [--jobs 100]

Prints how the jobs ended, how often each was tried, and how long the lost replica was missing.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from h3serve.core.request import parse_request
from h3serve.service.jobs.data_folder import DataFolder
from h3serve.service.jobs.job import NewJob, State, new_id
from h3serve.service.jobs.job_store import JobStore
from h3serve.service.prometheus_metrics import Metrics
from h3serve.service.service_settings import ServiceSettings, WorkerRules
from h3serve.service.workers.job_ledger import Ledger
from h3serve.service.workers.ray_relay import ray_command
from h3serve.service.workers.supervisor import Supervisor

REPLICAS = 3
REQUEST = {
    "task": "t2va",
    "prompt": "rain",
    "target": {"short_edge": 64, "aspect_ratio": "1:1", "duration_seconds": 4},
    "num_inference_steps": 1,
}
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED)


def cluster() -> None:
    """A head without room for workers and three nodes with room for one; the word `kill` on stdin ends a node."""
    from ray.cluster_utils import Cluster

    ray = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [ray.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(REPLICAS)]
    print("address", ray.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            ray.remove_node(nodes.pop(), allow_graceful=False)
            ray.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.shutdown()


@contextmanager
def running_cluster():
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["PYTHONPATH"] = str(Path.cwd())
    command = [sys.executable, "-m", "bench.ray_replicas", "--cluster"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stdout.readline, "")
        yield process, next(line.split()[1] for line in lines if line.startswith("address"))
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def postgresql():
    root, tools = Path(tempfile.mkdtemp(prefix="h3serve-pg-")), Path(shutil.which("pg_ctl")).parent
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(root, user)

    def call(*command: str) -> None:
        subprocess.run(command, check=True, user=user, cwd=root, stdout=subprocess.DEVNULL)

    data = str(root / "data")
    call(str(tools / "initdb"), "-D", data, "-U", "h3", "-A", "trust")
    options = f"-c listen_addresses= -c unix_socket_directories={root}"
    call(str(tools / "pg_ctl"), "-D", data, "-w", "-o", options, "-l", str(root / "log"), "start")
    try:
        yield f"postgresql+psycopg://h3@/postgres?host={root}"
    finally:
        call(str(tools / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--cluster", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cluster:
        cluster()
        return
    data = Path(tempfile.mkdtemp(prefix="h3serve-data-"))
    with postgresql() as url, running_cluster() as (nodes, address):
        store, folder, fatal = JobStore(url), DataFolder(data), []
        rules = WorkerRules(beat_s=1, silent_s=120, restart_s=0.1)
        settings = ServiceSettings("demo-random", devices=("cpu",) * REPLICAS, worker=rules)
        ledger = Ledger(store, folder, Metrics())
        supervisor = Supervisor(settings, ledger, on_fatal=fatal.append, command=ray_command(address))
        supervisor.start()
        ids = []
        for seed in range(options.jobs):
            request = parse_request({**REQUEST, "seed": seed}).model_dump(mode="json")
            job, _ = store.put(NewJob(id=new_id(), task="t2va", request=request, plan={}), max_queued=10_000).result()
            folder.accept(job.id)
            ids.append(job.id)
        supervisor.wake()
        began, killed, back = time.monotonic(), None, None
        while sum((jobs := Counter(store.get(i).state for i in ids))[s] for s in FINAL) < len(ids) and not fatal:
            done, now = jobs[State.COMPLETED], time.monotonic() - began
            if killed is None and done >= options.jobs // 3:
                nodes.stdin.write("kill\n")
                nodes.stdin.flush()
                killed = now
            if killed and back is None and now > killed + 5 and supervisor.is_ready:
                back = now
            time.sleep(0.5)
            if int(now) % 20 == 0:
                print(f"{now:6.0f} s  {dict(jobs)}  {supervisor.states()}", flush=True)
        seconds = time.monotonic() - began
        rows = [store.get(i) for i in ids]
        films = sum(len(list(folder.job(i).rglob("*.mp4"))) for i in ids)
        supervisor.drain(5)
        print(f"states {dict(Counter(str(r.state) for r in rows))}, attempts {dict(Counter(r.attempts for r in rows))}")
        print(
            f"{films} films of {len(ids)} jobs in {seconds:.0f} s; {sum(s.restarts for s in supervisor.slots)} replaced"
        )
        print(f"node killed at {killed} s, all ready again by {back} s; {fatal or 'nothing fatal'}")
        store.close()
    shutil.rmtree(data)


if __name__ == "__main__":
    main()
