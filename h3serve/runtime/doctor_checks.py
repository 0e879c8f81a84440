"""Is this machine fit for several ranks? Each check says what it saw and, where something is wrong, what to do.

Nothing is changed and no GPU memory worth mentioning is taken.
"""

from __future__ import annotations

import mmap
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal

import torch

from h3serve.core.estimate_work import GIB
from h3serve.runtime.parallel import joint_request
from h3serve.runtime.parallel.process_group import COLLECTIVE_TIMEOUT, MEET_TIMEOUT, own_environment
from h3serve.runtime.parallel.rank_launch import START_S
from h3serve.system.host_memory import host_memory

MIB = 2**20
SHM = Path("/dev/shm")
SHM_WANTED = 256 * MIB  # NCCL's own buffers between GPUs of one host; we put nothing there
FILES_WANTED = 4096


@dataclass(frozen=True)
class MachineFinding:
    """One thing looked at: `fault` does not work, `warning` works worse than it could."""

    level: Literal["ok", "warning", "fault"]
    subject: str
    text: str


def examine() -> Iterator[MachineFinding]:
    """All findings, each as soon as it is known; a check that fails itself is a finding."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # a doctor does not faint
            yield MachineFinding("fault", check.__name__, f"{type(error).__name__}: {error}")


def versions() -> Iterator[MachineFinding]:
    """Python, torch and what it was built for."""
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no GPU support"
    yield MachineFinding("ok", "versions", f"Python {platform.python_version()}, torch {torch.__version__} ({built})")
    if torch.version.cuda and torch.distributed.is_nccl_available():
        yield MachineFinding("ok", "NCCL", ".".join(map(str, torch.cuda.nccl.version())))


def driver() -> Iterator[MachineFinding]:
    """The driver, as nvidia-smi says it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield MachineFinding("ok", "driver", "no nvidia-smi: no NVIDIA GPU, or its tools are not installed")
        return
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        yield MachineFinding("fault", "driver", f"nvidia-smi fails: {(done.stderr or done.stdout).strip()[:200]}")
    else:
        yield MachineFinding("ok", "driver", ", ".join(sorted(set(done.stdout.split()))))


def gpus() -> Iterator[MachineFinding]:
    """Every GPU and whether each reaches the others directly."""
    count = torch.cuda.device_count()
    if not count:
        yield MachineFinding("warning", "GPUs", "torch sees none: everything runs on the CPU")
        return
    for index in range(count):
        found = torch.cuda.get_device_properties(index)
        size = f"{found.total_memory / GIB:.0f} GiB, compute capability {found.major}.{found.minor}"
        yield MachineFinding("ok", f"GPU {index}", f"{found.name}, {size}")
    apart = [pair for pair in permutations(range(count), 2) if not torch.cuda.can_device_access_peer(*pair)]
    if apart:
        text = f"{len(apart)} of {count * (count - 1)} directions have no direct access: exchanges go through the host"
        yield MachineFinding("warning", "links", text)
    elif count > 1:
        yield MachineFinding("ok", "links", f"all {count} GPUs reach each other directly")


def memory() -> Iterator[MachineFinding]:
    """Host memory within the cgroup."""
    total, free = host_memory()
    yield MachineFinding("ok", "host memory", f"{free / GIB:.1f} of {total / GIB:.1f} GiB free")


def shared_memory() -> Iterator[MachineFinding]:
    """/dev/shm, which NCCL may use; containers often have 64 MB."""
    if not SHM.is_dir():
        yield MachineFinding("warning", str(SHM), "there is none: NCCL between GPUs of one host may fail")
        return
    free = shutil.disk_usage(SHM).free
    text = f"{free / MIB:.0f} MiB free"
    if free < SHM_WANTED:
        advice = f"{text}; NCCL may end with a bus error: give the container --shm-size=1g"
        yield MachineFinding("warning" if torch.cuda.device_count() < 2 else "fault", str(SHM), advice)
    else:
        yield MachineFinding("ok", str(SHM), text)


def memory_files() -> Iterator[MachineFinding]:
    """Can decoded videos be shared between ranks? Without it every rank decodes for itself."""
    try:
        own = os.memfd_create("h3serve-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(own, mmap.PAGESIZE)
            other = os.open(f"/proc/{os.getpid()}/fd/{own}", os.O_RDONLY)
            mmap.mmap(other, mmap.PAGESIZE, access=mmap.ACCESS_COPY).close()
            os.close(other)
        finally:
            os.close(own)
    except OSError as error:
        yield MachineFinding(
            "warning", "memory files", f"not usable ({error}): every rank decodes reference clips for itself"
        )
    else:
        yield MachineFinding("ok", "memory files", "reference clips are decoded once per host")


def limits() -> Iterator[MachineFinding]:
    """Open files and locked memory."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = files == resource.RLIM_INFINITY or files >= FILES_WANTED
    advice = "" if enough else f"; a busy server wants {FILES_WANTED}: ulimit -n {FILES_WANTED}"
    yield MachineFinding("ok" if enough else "warning", "open files", f"at most {files}{advice}")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    size = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked / MIB:.0f} MiB"
    yield MachineFinding("ok", "locked memory", f"{size}; InfiniBand wants unlimited")


def network() -> Iterator[MachineFinding]:
    """What collectives read from the environment, and how long ranks wait."""
    given = {n: v for n, v in os.environ.items() if n.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_"))}
    shown = ", ".join(f"{n}={v}" for n, v in sorted(given.items())) or "nothing"
    yield MachineFinding("ok", "set by you", shown)
    ours = {n: v for n, v in own_environment("127.0.0.1").items() if n not in given}
    yield MachineFinding("ok", "set by us", ", ".join(f"{n}={v}" for n, v in sorted(ours.items())) or "nothing")
    waits = f"start {START_S:g} s, meeting {MEET_TIMEOUT.seconds} s, a collective {COLLECTIVE_TIMEOUT.seconds} s"
    yield MachineFinding("ok", "timeouts", f"{waits}, leaving a failed request {joint_request.SETTLE_S:g} s")


CHECKS: tuple[Callable[[], Iterator[MachineFinding]], ...] = (
    versions,
    driver,
    gpus,
    memory,
    shared_memory,
    memory_files,
    limits,
    network,
)
