"""A tiny transformer on disk, with a store over its blocks."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from h3serve.models.key_map import Entry, Layout
from h3serve.models.transformer import denoiser
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.weights.files.tensor_index import TensorIndex, read_index
from tests.models.tiny_transformer import TINY, tiny_denoiser


def write_tiny(
    folder: Path, layout: Layout = "original", seed: int = 0, dtype: torch.dtype = torch.float32
) -> Denoiser:
    """The network whose tensors the folder then holds, in that layout's order."""
    made = denoiser.to_compute_dtype(tiny_denoiser(seed), dtype)
    folder.mkdir(parents=True, exist_ok=True)
    state, tensors = made.state_dict(), {}
    for entry in denoiser.key_map(TINY, layout).entries:
        rows = entry.restore(state[entry.target]) if entry.restore else state[entry.target]
        parts = rows.chunk(len(entry.sources)) if len(entry.sources) > 1 else (rows,)
        tensors |= {name: part.clone().contiguous() for name, part in zip(entry.sources, parts, strict=True)}
    save_file(tensors, folder / "model.safetensors")
    return made


def block_groups(layout: Layout = "original", prefix: str = "transformer.blocks.") -> list[dict[str, Entry]]:
    """One group per block: names inside the block."""
    groups: list[dict[str, Entry]] = [{} for _ in range(TINY.num_layers)]
    for entry in denoiser.key_map(TINY, layout).entries:
        if entry.target.startswith(prefix):
            number, _, name = entry.target.removeprefix(prefix).partition(".")
            groups[int(number)][name] = entry
    return groups


def shapes() -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Denoiser(TINY).named_parameters()}


def tiny_index(folder: Path) -> TensorIndex:
    return read_index(folder)


def blocks_on_meta() -> nn.ModuleList:
    with torch.device("meta"):
        return Denoiser(TINY).transformer.blocks
