"""Every network's files are looked at before any of them is loaded."""

from pathlib import Path

import pytest

from h3serve.core.errors import CheckpointError
from h3serve.weights.components import RECIPES, check_files
from h3serve.weights.index import weight_files
from h3serve.weights.layout import open_folder


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_missing_and_a_cut_file_are_named(copy: Path, name: str) -> None:
    model = open_folder(copy)
    check_files(model, "fl2va")
    file = weight_files(model.component(name, "fl2va").weights)[-1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{file.name} is cut off"):
        check_files(model, "fl2va")
    file.unlink()
    with pytest.raises(CheckpointError, match="missing|no weight files"):
        check_files(model, "fl2va")
