"""Tokenizer and processor settings from their folder; no network (spec/text_encoder.md 7.4, 7.5, 7.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import Qwen2TokenizerFast

from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig
from h3serve.models.text_encoder.tokenizer import Tokenizer, check_tokenizer
from h3serve.models.text_encoder.vision_patches import check_processor
from h3serve.weights.files.checkpoint_folder import ModelFolder

IMAGE_SETTINGS = "preprocessor_config.json"
VIDEO_SETTINGS = "video_preprocessor_config.json"


def open_tokenizer(model: ModelFolder, partition: Partition, config: TextEncoderConfig) -> Tokenizer:
    """A checkpoint's tokenizer, if it and the processor's settings are those of H3; else CheckpointError."""
    check_processor_files(model.component("processor", partition).folder)
    return load_tokenizer(model.component("tokenizer", partition).folder, config)


def load_tokenizer(folder: Path, config: TextEncoderConfig) -> Tokenizer:
    """The tokenizer in `folder`: `tokenizer.json`, or `vocab.json` with `merges.txt`.

    Raises CheckpointError if files are missing or unreadable, or if it is not H3's tokenizer or
    does not fit the text encoder of `config`.
    """
    _check_files(folder)
    try:
        backend = Qwen2TokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise many kinds, bare Exception too
        raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from error
    tokenizer = Tokenizer(backend)
    check_tokenizer(tokenizer, config)
    return tokenizer


def check_processor_files(folder: Path) -> None:
    """Raises CheckpointError if the image or video settings in `folder` are not those we follow."""
    check_processor(_settings(folder / IMAGE_SETTINGS), _settings(folder / VIDEO_SETTINGS))


def _check_files(folder: Path) -> None:
    # Without its vocabulary transformers would make an empty tokenizer and say nothing.
    whole = (folder / "tokenizer.json").is_file()
    for name in ("tokenizer_config.json", *(() if whole else ("vocab.json", "merges.txt"))):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: missing, the tokenizer needs it")


def _settings(path: Path) -> dict[str, Any]:
    """The parsed file, empty if there is none: the release's own settings then hold."""
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return values
