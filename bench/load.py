"""Load on the HTTP side with a fake model: creates from many connections, then memory over many jobs.

Run from the repository's root: python -m bench.load [--creates N] [--connections N] [--jobs N]; --jobs 0 leaves
the second part out.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.service.client import T2VA, LiveServer, live


async def send(server: LiveServer, creates: int, connections: int) -> tuple[Counter[int], list[float], list[str]]:
    """Every status, the seconds of each create, and the ids that were accepted."""
    statuses: Counter[int] = Counter()
    seconds: list[float] = []
    accepted: list[str] = []
    left = iter(range(creates))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for seed in left:
            began = time.perf_counter()
            status, headers, reply = await post(reader, writer, {**T2VA, "prompt": "waits", "seed": seed})
            seconds.append(time.perf_counter() - began)
            statuses[status] += 1
            if status == 200:
                accepted.append(json.loads(reply)["id"])
            else:
                assert "retry-after" in headers and json.loads(reply)["error"]["message"]
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return statuses, seconds, accepted


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: Any) -> tuple[int, str, bytes]:
    """By hand: a library client would cost more than the server, on the same machine."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + data)
    headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    size = int(headers.split("content-length: ")[1].split("\r")[0])
    return int(headers.split()[1]), headers, await reader.readexactly(size)


def creates(options: argparse.Namespace, folder: Path) -> None:
    """The queue holds four fifths, so that refusals are measured too; a job runs from before to after."""
    bound = options.creates * 4 // 5
    with live(folder / "creates", max_queued=bound) as server, server.client() as http:
        wait(lambda: http.get("/ready").status_code == 200)
        http.post("/v1/videos", json={**T2VA, "prompt": "slow 30"})
        wait(lambda: is_running(http))
        process = psutil.Process(server.process.pid)
        spent, began = process.cpu_times(), time.perf_counter()
        statuses, seconds, accepted = asyncio.run(send(server, options.creates, options.connections))
        took, spent_after = time.perf_counter() - began, process.cpu_times()
        assert is_running(http), "the job ended too early"
        listed = every_id(http)
    assert sum(statuses.values()) == options.creates and set(accepted) <= listed and len(listed) == len(accepted) + 1
    seconds.sort()
    p50, p99 = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    cpu = sum(spent_after[:2]) - sum(spent[:2])
    print(
        f"creates from {options.connections} connections while a job runs: {dict(statuses)}, none lost; "
        f"p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, {options.creates / took:.0f} per second, "
        f"{cpu / options.creates * 1e3:.2f} ms of CPU each (load average {os.getloadavg()[0]:.1f})"
    )


def is_running(http: httpx.Client) -> bool:
    return "h3serve_jobs_running 1.0" in http.get("/metrics").text


def every_id(http: httpx.Client) -> set[str]:
    listed, after = set[str](), None
    while True:
        page = http.get("/v1/videos", params={"limit": 100, **({"after": after} if after else {})}).json()
        listed |= {video["id"] for video in page["data"]}
        if not page["has_more"]:
            return listed
        after = page["last_id"]


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Resident MiB of server and worker after a tenth of the jobs and after each fifth."""
    with live(folder / "memory", max_queued=20) as server, server.client() as http:
        wait(lambda: http.get("/ready").status_code == 200)
        seen: list[tuple[int, int]] = []
        marks = [options.jobs // 10, *(options.jobs * fifth // 5 for fifth in range(1, 6))]
        for number in range(options.jobs):
            while http.post("/v1/videos", json={**T2VA, "seed": number % 7}).status_code == 429:
                time.sleep(0.05)
            if number + 1 in marks:
                workers = [e["pid"] for e in server.log if e["message"] == "worker starts"]
                sizes = [psutil.Process(p).memory_info().rss >> 20 for p in (server.process.pid, workers[-1])]
                seen.append((sizes[0], sizes[1]))
    print(f"memory (server, worker) MiB after {marks} jobs: {seen}")


def wait(look: Any) -> None:
    while not look():
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("creates", 1000), ("connections", 50), ("jobs", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        creates(options, Path(folder))
        if options.jobs:
            memory(options, Path(folder))


if __name__ == "__main__":
    main()
