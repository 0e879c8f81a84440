"""From what a user calls a model (a folder, a hub id, or "demo") to what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from h3serve.core.errors import OutputError, RequestError
from h3serve.core.limits import Partition
from h3serve.core.model_name import DEMOS, check_model, is_hub_id
from h3serve.core.settings import cache_folder
from h3serve.weights.demo.demo_random import write_demo_checkpoint
from h3serve.weights.demo.demo_trained import CONFIG, TRAINED, write_trained_checkpoint
from h3serve.weights.files.checkpoint_folder import ModelFolder, open_folder
from h3serve.weights.files.hub import download
from h3serve.weights.files.tensor_index import read_json

OLD_S = 14 * 86400.0  # another version's demo that nobody asked for in so long is removed
# Folders of code that decides what a demo holds, below the package.
_WRITERS = ("models", "weights/demo", "weights/formats")


def locate(
    model: str, partition: Partition | None = None, *, revision: str | None = None, cache: str | Path | None = None
) -> ModelFolder:
    """Open a model, fetched or made first if need be, that holds `partition` (None: whatever is there).

    A folder never touches the network; of a hub id without `partition` the FL2VA one is fetched. A demo,
    trained ("demo") or not ("demo-random"), is written on first use. Both go below `cache`, as in `EngineSettings`.
    CheckpointError if it cannot be found or lacks the partition.
    """
    if revision is not None and (model in DEMOS or not is_hub_id(model) or Path(model).is_dir()):
        raise RequestError("revision", revision, f"only a hub id has revisions, {model} is none")
    check_model(model)
    if model in DEMOS:
        folder = open_folder(demo_folder(model, cache_folder(cache)))
    elif Path(model).expanduser().is_dir():
        folder = open_folder(Path(model))
    else:
        folder = open_folder(download(model, partition or "fl2va", revision=revision, cache=cache))
    if partition is not None:
        folder.partition(partition)
    return folder


def demo_folder(model: str, cache: Path) -> Path:
    """The checkpoint of a demo, written on first use; several processes may ask at once."""
    folder = cache / f"{model}-{_digest(model)}"
    if folder.is_dir():
        with suppress(OSError):  # of another user, or read-only
            os.utime(folder)
    else:
        try:
            if model == "demo":
                write_trained_checkpoint(folder, TRAINED)
            else:
                write_demo_checkpoint(folder)
        except (RequestError, OutputError):  # another process was faster, or it really failed
            if not folder.is_dir():
                raise
        _remove_old(model, folder)
    return folder


def _remove_old(model: str, current: Path) -> None:
    """Other versions' demos, and what killed writers left, unless a process has asked for them lately.

    A demo takes a hidden name before its files go, so nobody finds half of one; what cannot be removed stays.
    """
    ours = re.compile(rf"\.?{model}-[0-9a-f]{{12}}(\.\w+)?")
    for folder in current.parent.iterdir():
        with suppress(OSError):
            if folder == current or not ours.fullmatch(folder.name) or time.time() - folder.lstat().st_mtime < OLD_S:
                continue
            going = folder if folder.name.startswith(".") else folder.rename(folder.with_name(f".{folder.name}.old"))
            shutil.rmtree(going, ignore_errors=True)


def _digest(model: str) -> str:
    """Of the code and packed weights that decide what a demo holds: an older one is never taken for this one's."""
    package = Path(__file__).parents[1]
    files = sorted(file for folder in _WRITERS for file in (package / folder).rglob("*.py"))
    code = b"".join(file.read_bytes() for file in files)
    manifest = read_json(TRAINED / CONFIG) if model == "demo" else None
    return hashlib.sha256(code + json.dumps(manifest).encode()).hexdigest()[:12]
