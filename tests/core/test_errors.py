"""One sentence per error, and both ends of a long value in it."""

import pickle

import pytest

from h3serve.core import errors


def test_long_values_keep_both_ends() -> None:
    path = "/" + "folder/" * 40 + "clip.mp4"
    text = str(errors.RequestError("out", path, "a shorter path"))
    assert "'/folder/" in text and "clip.mp4'" in text and len(text) < 150


@pytest.mark.parametrize("kind", [errors.RequestError, errors.MediaError])
def test_request_errors_travel_between_processes(kind: type[errors.RequestError]) -> None:
    error = pickle.loads(pickle.dumps(kind("seed", -1, "a whole number")))
    assert type(error) is kind and (error.field, error.value, error.allowed) == ("seed", -1, "a whole number")


def test_exit_codes() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.H3Error)]
    assert {k.exit_code for k in kinds} == {1, 2}
    assert errors.RequestError.exit_code == errors.CheckpointError.exit_code == errors.CapacityError.exit_code == 2
