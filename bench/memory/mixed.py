"""Fifty requests in a row, of mixed shapes, lengths, steps and tasks: what stays allocated behind each."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import torch

from bench.memory.run import GIB, Results, Run, body, ready_engine
from h3serve.pipeline.generator import Generator

EDGES = (64, 128, 192, 256)


def mixed_part(run: Run, found: Results) -> None:
    """Device and host memory behind each request."""
    engine = ready_engine(run, steps=(1, 2))
    generator, rows, wanted = Generator(engine), [], 6 if run.tiny else 50
    began = time.perf_counter()
    for number in range(wanted):
        keyframe = number % 5 == 4
        request = body(
            run, EDGES[number % len(EDGES)], 4.0 + number % 2, 1 + number % 2, seed=number, keyframe=keyframe
        )
        generator.generate(request)
        rows.append([number + 1, *_held(run)])
        if run.spent > run.limit:
            break
    table = np.round(np.array(rows), 3)
    third = max(1, len(table) // 3)
    found |= {
        "requests": f"{len(table)} of {wanted}",
        "seconds": round(time.perf_counter() - began, 1),
        "columns": ["request", "device allocated GiB", "device reserved GiB", "host resident GiB"],
        "growth_middle_to_last_third_gib": (table[-third:].mean(0) - table[third : 2 * third].mean(0))[1:].tolist(),
        "every_fifth": table[::5].tolist(),
        "last": table[-1].tolist(),
        "encodings": engine.stats("t2va")["encodings"],
    }


def _held(run: Run) -> tuple[float, float, float]:
    """GiB allocated and reserved on the device, and resident on the host."""
    host = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if not run.is_cuda:
        return 0.0, 0.0, host / GIB
    return torch.cuda.memory_allocated() / GIB, torch.cuda.memory_reserved() / GIB, host / GIB
