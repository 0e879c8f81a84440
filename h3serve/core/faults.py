"""Whose fault an exception is, where its kind tells; the device's are known by name, because core has no torch."""

from __future__ import annotations

import errno

# A disk or a network mount that fails, a process or a system out of descriptors.
_BROKEN = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.EMFILE, errno.ENFILE)


def is_out_of_memory(error: BaseException) -> bool:
    """Host or device memory ran out."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def broken_part(error: BaseException) -> str | None:
    """What of the machine failed, in words; None for an exception that may be the request's or the program's fault."""
    if any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__):
        return "the device failed"
    if isinstance(error, OSError) and error.errno in _BROKEN:
        return f"the system failed ({errno.errorcode[error.errno]})"
    return None
