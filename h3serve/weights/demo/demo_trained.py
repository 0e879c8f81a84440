"""The trained demo: weights in 16 bits that come with the package, unpacked into a checkpoint like any other.

`trained/` holds config.json (every network's configuration in the original layout, and the digest of every file),
tokenizer.json, and one safetensors file a network by our names. `demo/write.py` of the repository makes it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from h3serve.core.errors import CheckpointError
from h3serve.core.model_name import TRANSFORMERS
from h3serve.models.transformer.transformer import inverse_frequencies
from h3serve.weights.demo.demo_random import DemoPart, DemoParts, flat, write_checkpoint
from h3serve.weights.files.tensor_index import read_json
from h3serve.weights.formats.checksums import key
from h3serve.weights.formats.components import RECIPES

TRAINED = Path(__file__).parent / "trained"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# How a checkpoint stores them: as the release does.
STORED = {
    "transformer": torch.bfloat16,
    "text_encoder": torch.bfloat16,
    "video_vae": torch.float32,
    "audio_vae": torch.float32,
}
# Decoder layers that were not trained add nothing: all their tensors are zero, and not in the file.
LAYERS = re.compile(r"model\.language_model\.layers\.\d+\.")


def write_trained_checkpoint(folder: Path, trained: Path = TRAINED) -> None:
    """Write both partitions in the original layout into a new or empty folder; whole or not at all.

    CheckpointError if a file of the package is missing or not the one that was packed.
    """
    parts, tokenizer = read_trained(trained)
    write_checkpoint(folder, "original", parts, tokenizer)


def read_trained(trained: Path = TRAINED) -> tuple[DemoParts, Tokenizer]:
    """All networks, in memory as a checkpoint stores them, and the tokenizer."""
    manifest = read_json(trained / CONFIG)
    for name, digest in manifest["files"].items():
        _check(trained / name, digest)
    parts = {name: _part(trained, name, manifest["configs"][network(name)]) for name in file_names()}
    return parts, Tokenizer.from_file(str(trained / TOKENIZER))


def file_names() -> dict[str, str]:
    """The weight file of every part, by `probes.key`."""
    shared = {name: f"{name}.safetensors" for name in RECIPES if name != "transformer"}
    return {key("transformer", name): f"transformer_{name}.safetensors" for name in TRANSFORMERS} | shared


def network(part: str) -> str:
    """Which recipe a part is made by."""
    return next(name for name in RECIPES if part.startswith(name))


def digest_of(file: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _part(trained: Path, name: str, raw: dict[str, Any]) -> DemoPart:
    recipe, file = RECIPES[network(name)], trained / file_names()[name]
    config = recipe.read_config(flat(raw))
    module = recipe.build(config)  # not on meta: its buffers are in no file
    packed, needed = load_file(file), {target for target, _ in module.named_parameters() if not LAYERS.match(target)}
    if missing := sorted(needed - set(packed)):
        raise CheckpointError(f"{file}: {missing[0]} is missing")
    held = {t: torch.zeros_like(own) if LAYERS.match(t) else own for t, own in module.state_dict().items()} | packed
    state = {target: tensor.to(recipe.dtype_of(target, STORED[network(name)])) for target, tensor in held.items()}
    only_file = {"rope.inv_freq": inverse_frequencies(config)} if network(name) == "transformer" else {}
    return DemoPart(network(name), {"original": raw}, state, {"original": only_file})


def _check(file: Path, digest: str) -> None:
    if not file.is_file() or digest_of(file) != digest:
        raise CheckpointError(f"{file} is not what was packed: install the package again")
