"""A checkpoint by its hub id, through huggingface_hub: only the needed files, offline mode honoured."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.core.model_name import PARTITION_FOLDERS, TRANSFORMERS
from h3serve.core.settings import cache_folder
from h3serve.weights.files.checkpoint_folder import is_original_partition

INDEX_FILES = ("*model_index.json",)
SUFFIXES = ("json", "safetensors", "txt", "jinja")
SHARED = ("text_encoder", "tokenizer", "processor")


def download(model: str, partition: Partition, *, revision: str | None = None, cache: str | Path | None = None) -> Path:
    """The local snapshot of a hub id, holding at least one partition's files.

    It lies in `hub/` below `cache` if that is given and the environment (`HF_HUB_CACHE`, `HF_HOME`) names no place.

    With `HF_HUB_OFFLINE` set, or no network, what an earlier download left is used; CheckpointError
    if that is not enough or the repository or revision does not exist.
    """
    named = cache is None or any(name in os.environ for name in ("HF_HUB_CACHE", "HF_HOME"))
    place = None if named else cache_folder(cache) / "hub"
    snapshot = _snapshot(model, INDEX_FILES, revision, place)
    return _snapshot(model, needed_files(snapshot, partition), revision, place)


def needed_files(snapshot: Path, partition: Partition) -> tuple[str, ...]:
    """Patterns of the files that a partition needs, by the index files that a repository has."""
    if is_original_partition(snapshot):
        return ("model_index.json", *_patterns(("transformer", "video_vae", "audio_vae", *SHARED)))
    for folder, name in PARTITION_FOLDERS.items():
        if name == partition and (snapshot / folder / "model_index.json").is_file():
            return _patterns((folder,))
    folders = (TRANSFORMERS[partition], "vae", "audio_vae", *SHARED, "scheduler", "audio_scheduler")
    return ("*model_index.json", *_patterns(folders))


def _patterns(folders: tuple[str, ...]) -> tuple[str, ...]:
    return ("h3serve.json", *(f"{folder}/*.{suffix}" for folder in folders for suffix in SUFFIXES))


def _snapshot(model: str, patterns: tuple[str, ...], revision: str | None, place: Path | None) -> Path:
    at = f" at revision {revision}" if revision else ""
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(patterns), cache_dir=place))
    except GatedRepoError:
        reason = "needs its licence accepted and a login (`hf auth login`)"
    except RepositoryNotFoundError:
        reason = "is not a repository of the hub, or not one this login may read"
    except RevisionNotFoundError:
        reason = "does not have that revision"
    except HFValidationError as error:
        reason = f"is not a hub id: {error}"
    except LocalEntryNotFoundError:
        reason = "is not, or not wholly, in the local hub cache, and the hub cannot be reached"
    except Exception as error:  # errors of the hub's transport are not part of its interface
        reason = f"could not be fetched: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    raise CheckpointError(f"{model}{at} {reason}")
