"""One decode per host against one per rank: bytes and seconds for 1, 2, 4 and 8 ranks.

    python bench/shared_decode.py [--width 1344 --height 768 --frames 120 --ranks 1 2 4 8]

Each way runs in fresh processes. Bytes are the growth of all ranks' shares of memory together (Pss) while all
of them hold the clip; seconds run from a common start until the last rank has its pixels.
"""

import argparse
import multiprocessing as mp
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from h3serve.media.read.video import decode_into
from h3serve.media.sources.media_file import MediaFile
from h3serve.media.write.mp4_writer import mp4_writer
from h3serve.runtime.parallel.parallel_layout import Shape
from h3serve.runtime.parallel.process_group import Ranks, open_store
from h3serve.runtime.parallel.shared_decode import shared_decode

MIB = 2**20


def draw_film(path: Path, width: int, height: int, frames: int) -> None:
    """A moving, detailed picture, so that decoding costs what films cost."""
    grain = np.random.default_rng(0).integers(0, 64, (height + frames, width + frames, 3), np.uint8)
    slope = np.linspace(0, 191, width).astype(np.uint8)[None, :, None]
    with mp4_writer(path, width=width, height=height, num_frames=frames) as writer:
        writer.write_audio(np.zeros((2, frames * 32_000 // 24), np.float32))
        for i in range(frames):
            writer.write_frames((grain[i : i + height, i : i + width] + slope)[None])


def share_of_memory() -> int:
    """Pss of this process in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def rank_main(answers: Any, rank: int, size: int, port: int, film: Path, shape: tuple[int, ...], way: str) -> None:
    """One rank: decode one way, measure, and answer (bytes, seconds, checksum)."""
    torch.set_num_threads(1)
    ranks = Ranks(rank, Shape(ulysses=size), port=port, device=torch.device("cpu"))
    ranks.open()
    ranks.world.gather_json(None)
    before, began = share_of_memory(), time.perf_counter()

    def fill(out: Any) -> None:
        decode_into(out, MediaFile(film))

    if way == "shared":
        clip = shared_decode(shape, fill, ranks.world)
    else:
        clip = np.empty(shape, np.uint8)
        fill(clip)
    seconds = time.perf_counter() - began
    checksum = int(clip.sum(dtype=np.int64))  # touches every page
    ranks.world.gather_json(None)
    answers.put((share_of_memory() - before, seconds, checksum))
    ranks.world.gather_json(None)
    ranks.close()


def measure(size: int, film: Path, shape: tuple[int, ...], way: str) -> tuple[int, float, set[int]]:
    """(bytes of all ranks, seconds of the slowest, their checksums)."""
    context = mp.get_context("fork")
    store, port = open_store()
    answers = context.Queue()
    processes = [
        context.Process(target=rank_main, args=(answers, rank, size, port, film, shape, way)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        found = [answers.get(timeout=300) for _ in processes]
    finally:
        for process in processes:
            process.join(20)
            process.kill()
        del store
    added, seconds, checksums = zip(*found, strict=True)
    return sum(added), max(seconds), set(checksums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 1344), ("height", 768), ("frames", 120)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    shape = (options.frames, options.height, options.width, 3)
    clip = int(np.prod(shape))
    size = f"{options.width}x{options.height}, {options.frames} frames"
    print(f"clip {size}: {clip / MIB:.1f} MiB; {os.cpu_count()} cores\n")
    print("| ranks | per rank: MiB | shared: MiB | storage | per rank: s | shared: s | extra MiB per extra rank |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        first = 0
        film = Path(folder) / "film.mp4"
        draw_film(film, options.width, options.height, options.frames)
        for size in options.ranks:
            alone, alone_s, sums = measure(size, film, shape, "per rank")
            shared, shared_s, shared_sums = measure(size, film, shape, "shared")
            assert sums == shared_sums and len(sums) == 1, "the pixels differ"
            first = shared if size == options.ranks[0] else first
            extra = f"{(shared - first) / (size - options.ranks[0]) / MIB:.1f}" if shared is not first else "–"
            storage = f"{100 * (shared / alone - 1):+.1f} %"
            cells = [f"{alone / MIB:.1f}", f"{shared / MIB:.1f}", storage, f"{alone_s:.2f}", f"{shared_s:.2f}", extra]
            print("| " + " | ".join([str(size), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
