"""How long `/health` takes while large bodies come in: JSON of 60 MB of several kinds, and uploads of 1 GB.

Run from the repository's root: python -m bench.health [--seconds N] [--clients N]. The fake model is used; the
clients are processes of their own, so cores that they take are missing to the server.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from tests.service.client import LiveServer, live

_PIECE = 2**20
_JSON = 60 * 10**6
_UPLOAD = 10**9
_EVERY_S = 0.02


def bodies(kind: str) -> tuple[str, Iterator[bytes]]:
    """Content type and pieces of one body."""
    if kind == "upload of 1 GB":
        return "multipart/form-data; boundary=b", _upload()
    begin, unit, end = {
        "60 MB of {}": (b'{"prompt": "a", "conditions": [', b"{},", b"{}]}"),
        "60 MB of one text": (b'{"prompt": "', b"x", b'"}'),
        "60 MB of a data: URI": (b'{"prompt": "a", "input_reference": "data:image/png;base64,', b"AAAA", b'"}'),
    }[kind]
    piece = unit * (_PIECE // len(unit))
    return "application/json", (part for part in (begin, *[piece] * (_JSON // len(piece)), end))


KINDS = ("60 MB of {}", "60 MB of one text", "60 MB of a data: URI", "upload of 1 GB")


def _upload() -> Iterator[bytes]:
    yield b'--b\r\nContent-Disposition: form-data; name="input_reference"; filename="a.mp4"\r\n\r\n'
    piece = os.urandom(_PIECE)
    for _ in range(_UPLOAD // _PIECE):
        yield piece
    yield b"\r\n--b--\r\n"


def send(port: int, kind: str, until: float) -> None:
    """Send such bodies one after another."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # where the rest runs at real-time priority
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
        while time.time() < until:
            content_type, pieces = bodies(kind)
            try:
                client.post("/v1/plan", content=pieces, headers={"Content-Type": content_type})
            except httpx.HTTPError:  # it was refused before all was sent
                continue


async def measure(port: int, until: float) -> list[float]:
    """Seconds of each `/health`."""
    seconds = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.time() < until:
        began = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(_EVERY_S)
    writer.close()
    return sorted(seconds)


def under(server: LiveServer, kind: str | None, clients: int, seconds: float) -> str:
    """One line of figures."""
    until = time.time() + seconds
    senders = [
        multiprocessing.Process(target=send, args=(server.port, kind, until), daemon=True)
        for _ in range(clients if kind else 0)
    ]
    for sender in senders:
        sender.start()
    took = asyncio.run(measure(server.port, until))
    rss = psutil.Process(server.process.pid).memory_info().rss >> 20
    for sender in senders:
        sender.join()
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    return f"p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f}, most {took[-1] * 1e3:.1f} ms of {len(took)}; server {rss} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, live(Path(folder) / "data") as server, server.client() as http:
        while http.get("/ready").status_code != 200:
            time.sleep(0.05)
        print(f"/health with {options.clients} clients, load average {os.getloadavg()[0]:.1f}")
        for kind in (None, *KINDS):
            print(f"{kind or 'nothing'}: {under(server, kind, options.clients, options.seconds)}", flush=True)


if __name__ == "__main__":
    main()
