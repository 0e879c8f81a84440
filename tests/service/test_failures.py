import errno

import pytest

from h3serve.core.errors import CapacityError, MediaError, OutputError, RequestError, WorkerError
from h3serve.service.failures import failure_of


class OutOfMemoryError(RuntimeError):
    """Named like the one of the tensor library."""


@pytest.mark.parametrize(
    ("error", "code", "leaves"),
    [
        (RequestError("seed", -1, "0 or more"), "invalid_request", False),
        (MediaError("conditions[0]", "a.png", "a picture"), "invalid_media", False),
        (CapacityError("needs 90 GiB, has 80"), "does_not_fit", False),
        (OutputError("values are NaN"), "output_failed", False),
        (WorkerError("rank 3 died"), "generation_failed", True),
        (MemoryError(), "out_of_memory", True),
        (OutOfMemoryError("CUDA out of memory"), "out_of_memory", True),
        (OSError(errno.ENOSPC, "No space left"), "disk_full", False),
        (ValueError("/srv/secret"), "internal", True),
    ],
)
def test_codes(error: Exception, code: str, leaves: bool) -> None:
    failure = failure_of(error, "decode")
    assert (failure.code, failure.leaves) == (code, leaves)
    assert failure.message and "/srv" not in failure.message
