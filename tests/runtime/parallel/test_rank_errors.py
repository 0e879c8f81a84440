"""Errors keep their kind and words on the way between ranks."""

import errno
import json
from pathlib import Path

import pytest

from h3serve.core.errors import (
    Cancelled,
    CapacityError,
    H3Error,
    MediaError,
    OutOfMemoryError,
    RankError,
    RequestError,
    WorkerError,
)
from h3serve.runtime.parallel.process_group import Disconnected
from h3serve.runtime.parallel.rank_errors import from_json, to_json


@pytest.mark.parametrize(
    "error",
    [
        RequestError("seed", -1, "0 or more"),
        RequestError("reference", Path("a"), "a file"),
        MediaError("conditions[0]", "cat.mp4", "the file is empty"),
        CapacityError("needs 90 GB"),
        Cancelled("the job was cancelled"),
    ],
)
def test_ours_come_back_as_they_were(error: H3Error) -> None:
    back = from_json(json.loads(json.dumps(to_json(error, 1))))
    assert type(back) is type(error)
    if not isinstance(getattr(error, "value", None), Path):
        assert str(back) == str(error)


class AcceleratorError(RuntimeError):
    """Named like the tensor library's for a device that failed."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (IndexError("list index out of range"), RankError),  # it would come again
        (MemoryError("64 GiB"), OutOfMemoryError),
        (AcceleratorError("CUDA error: uncorrectable ECC error"), WorkerError),  # the machine's fault
        (OSError(errno.EIO, "Input/output error"), WorkerError),
        (OSError(errno.ENOENT, "No such file"), RankError),
    ],
)
def test_anything_else_is_a_worker_error_that_names_the_rank(error: Exception, kind: type[H3Error]) -> None:
    back = from_json(to_json(error, 3))
    assert type(back) is kind and isinstance(back, WorkerError)
    assert str(back) == f"rank 3: {type(error).__name__}: {error}"


def test_a_kind_of_our_own_comes_back_as_the_one_it_is_a_kind_of() -> None:
    back = from_json(to_json(Disconnected("gone"), 0))
    assert type(back) is WorkerError and str(back) == "gone"
