"""Every error a user of h3serve can meet. Exit code and HTTP status are properties of the class.

H3Error
├── RequestError      the request is wrong: names the field, the value and what is allowed   (exit 2, HTTP 400)
│   └── MediaError    an image, video or audio file cannot be used
├── CapacityError     the request is legal but cannot fit this machine                       (exit 2, HTTP 422)
├── CheckpointError   a weight file is missing, truncated, renamed or not what it claims     (exit 2, HTTP 500)
├── EndpointError     the endpoint that rewrites prompts failed: another service, not this one    (exit 1, HTTP 502)
├── OutputError       the result could not be made or written (NaN, disk full, bad file)     (exit 1, HTTP 500)
├── WorkerError       a worker process died or hung: another one may succeed                 (exit 1, HTTP 500)
│   └── RankError     a rank met an error that nobody foresaw: it would come again
│       └── OutOfMemoryError   that error was want of memory
└── Cancelled         the caller asked to stop                                               (exit 1, HTTP 409)
"""

from __future__ import annotations

import errno
from typing import Any

# A disk or a network mount that fails, a process or a system out of descriptors.
_BROKEN = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.EMFILE, errno.ENFILE)
_SHOWN = 80  # characters of an offending value that are worth repeating


class H3Error(Exception):
    """Base of all errors that are reported as one sentence and without a traceback."""

    exit_code = 1
    http_status = 500


class RequestError(H3Error):
    """A wrong input. `field` is the dotted path of the request field, `allowed` what it may be."""

    exit_code = 2
    http_status = 400

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}: {_show(value)} is not usable: {allowed}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.value, self.allowed)


class MediaError(RequestError):
    """An image, video or audio file that cannot be used; `allowed` says why and what would do."""


class CapacityError(H3Error):
    """The request is legal but cannot fit: the sentence carries the numbers."""

    exit_code = 2
    http_status = 422


class CheckpointError(H3Error):
    """A model folder or file that is not a whole MiniMax-H3 checkpoint; names the file or tensor."""

    exit_code = 2


class EndpointError(H3Error):
    """Another service that was asked for a prompt failed, or gave an answer that is none."""

    http_status = 502


class OutputError(H3Error):
    """The result could not be made or written."""


class WorkerError(H3Error):
    """A worker process died or hung; the request is not at fault."""


class RankError(WorkerError):
    """One of several ranks met an error that nobody foresaw; the others raise this one."""


class OutOfMemoryError(RankError):
    """One of several ranks ran out of memory; named like what that rank met itself."""


class Cancelled(H3Error):
    """The caller asked to stop; nothing was written."""

    http_status = 409


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device memory ran out; the device's error is known by name, because core has no torch."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def broken_part(error: BaseException) -> str | None:
    """What of the machine failed, in words; None for an exception that the request or the program may have caused."""
    if any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__):
        return "the device failed"
    if isinstance(error, OSError) and error.errno in _BROKEN:
        return f"the system failed ({errno.errorcode[error.errno]})"
    return None


def _show(value: Any) -> str:
    """Both ends of a long value: a path says most at its end, a text at its start."""
    text, half = repr(value), _SHOWN // 2
    return text if len(text) <= _SHOWN else f"{text[: half - 1]}…{text[-half:]}"
