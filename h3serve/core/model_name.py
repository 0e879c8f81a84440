"""What a model may be called, and which folders a checkpoint has: all that is known before a file is opened."""

from __future__ import annotations

import re
from pathlib import Path

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition

# "demo" is the trained one, "demo-random" the one with random weights.
DEMOS = ("demo", "demo-random")
PARTITION_FOLDERS: dict[str, Partition] = {"FL2VA": "fl2va", "Ref2VA": "ref2va"}  # of the original layout
TRANSFORMERS: dict[Partition, str] = {"fl2va": "transformer", "ref2va": "transformer_ref"}  # of the diffusers layout
# What a file of weights is called, by its suffix: people name one where a checkpoint's folder is wanted.
FILES = {
    ".gguf": "a GGUF file",
    ".safetensors": "a safetensors file",
    ".ckpt": "a pickled checkpoint",
    ".pt": "a pickled checkpoint",
    ".pth": "a pickled checkpoint",
    ".bin": "a pickled checkpoint",
}
WANTED = "the folder of a checkpoint (config files and safetensors of every network), a hub id (owner/name) or demo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(model: str) -> bool:
    """Whether a text can be a hub id (`owner/name`) rather than a path."""
    return (
        _HUB_ID.fullmatch(model) is not None and not model.startswith(".") and Path(model).suffix.lower() not in FILES
    )


def check_model(model: str) -> None:
    """CheckpointError for what can be no checkpoint: a quick look, so that nothing is started in vain."""
    try:
        root = Path(model).expanduser()
    except RuntimeError:  # of a user that there is not
        raise CheckpointError(f"{model!r} is no folder: its user is not known here") from None
    if model in DEMOS or (is_hub_id(model) and not root.exists()):
        return
    kind = FILES.get(root.suffix.lower(), "a file")
    if root.is_file():
        raise CheckpointError(f"{model!r} is {kind}; wanted is {WANTED}")
    if kind != "a file" and not root.exists():
        raise CheckpointError(f"{model!r} would be {kind}, which is not there; and wanted is {WANTED}")
    if not model or not root.is_dir():
        raise CheckpointError(f"{model!r} is no folder, no hub id (owner/name) and not demo")
    if not any((root / name).exists() for name in ("model_index.json", *PARTITION_FOLDERS, *TRANSFORMERS.values())):
        raise CheckpointError(
            f"{root} is not a MiniMax-H3 checkpoint: it has neither FL2VA/ or Ref2VA/, "
            f"nor a model_index.json, nor transformer/ or transformer_ref/"
        )
