import errno

import pytest

from h3serve.core import errors
from h3serve.core.errors import CapacityError, MediaError, OutputError, RankError, RequestError, WorkerError
from h3serve.service.jobs.job_failures import failure_of


class OutOfMemoryError(RuntimeError):
    """Named like the one of the tensor library."""


class AcceleratorError(RuntimeError):
    """Likewise, for a device that failed."""


@pytest.mark.parametrize(
    ("error", "code", "leaves", "again"),
    [
        (RequestError("seed", -1, "0 or more"), "invalid_request", False, False),
        (MediaError("conditions[0]", "a.png", "a picture"), "invalid_media", False, False),
        (CapacityError("needs 90 GiB, has 80"), "does_not_fit", False, False),
        (OutputError("values are NaN"), "output_failed", False, False),
        (WorkerError("rank 3 is gone"), "generation_failed", True, True),
        (RankError("rank 3: KeyError: 'x'"), "generation_failed", True, False),
        (errors.OutOfMemoryError("rank 3: CUDA out of memory"), "out_of_memory", True, False),
        (MemoryError(), "out_of_memory", True, False),
        (OutOfMemoryError("CUDA out of memory"), "out_of_memory", True, False),
        (AcceleratorError("CUDA error: uncorrectable ECC error"), "generation_failed", True, True),
        (OSError(errno.EIO, "Input/output error"), "generation_failed", True, True),
        (OSError(errno.EMFILE, "Too many open files"), "generation_failed", True, True),
        (OSError(errno.ENOSPC, "No space left"), "disk_full", False, False),
        (ValueError("/srv/secret"), "internal", True, False),
    ],
)
def test_codes(error: Exception, code: str, leaves: bool, again: bool) -> None:
    failure = failure_of(error, "decode")
    assert (failure.code, failure.leaves, failure.again) == (code, leaves, again)
    assert failure.message and "/srv" not in failure.message
