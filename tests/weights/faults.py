"""Breaks a checkpoint on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from h3serve.weights.files.save import save_shards
from h3serve.weights.files.tensor_index import weight_files

Change = Callable[[dict[str, torch.Tensor]], None]


def rewrite(folder: Path, change: Change) -> None:
    """Replace a component's weight files by one that holds changed tensors."""
    files = weight_files(folder)
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    change(tensors)
    stem = "diffusion_pytorch_model" if files[0].name.startswith("diff") else "model"
    for file in [*files, folder / f"{stem}.safetensors.index.json"]:
        file.unlink(missing_ok=True)
    save_shards(tensors, folder, stem=stem)
