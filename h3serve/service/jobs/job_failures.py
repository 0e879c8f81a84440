"""Why a job failed, in plain words, and whether the worker can go on after it."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from h3serve.core.errors import (
    CapacityError,
    H3Error,
    MediaError,
    OutputError,
    RankError,
    RequestError,
    WorkerError,
    broken_part,
    is_out_of_memory,
)


@dataclass(frozen=True)
class Failure:
    """`code` is for programs, `message` for people; `leaves`: the worker must be replaced.

    `again`: the machine's fault and not the request's; another worker may well succeed.
    """

    code: str
    message: str
    leaves: bool = False
    again: bool = False


_CODES: tuple[tuple[type[H3Error], str], ...] = (
    (MediaError, "invalid_media"),
    (RequestError, "invalid_request"),
    (CapacityError, "does_not_fit"),
    (OutputError, "output_failed"),
    (H3Error, "generation_failed"),
)


def failure_of(error: BaseException, stage: str) -> Failure:
    """Name an exception that ended a job during `stage`."""
    during = f"during {stage}" if stage else "at the start"
    if is_out_of_memory(error):
        message = f"out of memory {during}; ask for a shorter or smaller video or fewer references"
        return Failure("out_of_memory", message, leaves=True)
    if isinstance(error, RankError):
        return Failure("generation_failed", str(error), leaves=True)
    if isinstance(error, WorkerError):  # a rank of the replica is gone or hangs
        return Failure("generation_failed", str(error), leaves=True, again=True)
    for kind, code in _CODES:
        if isinstance(error, H3Error) and isinstance(error, kind):
            return Failure(code, str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure("disk_full", f"the server's disk is full ({during})")
    if (why := broken_part(error)) is not None:
        return Failure("generation_failed", f"{why} {during}", leaves=True, again=True)
    # Nobody knows what an unforeseen error left behind in the model: start afresh.
    message = f"internal error {during} ({type(error).__name__}); the server's log has the details"
    return Failure("internal", message, leaves=True)
