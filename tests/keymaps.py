"""Key maps applied in memory, both ways, strictly: what the loader does with files."""

from collections.abc import Mapping
from fnmatch import fnmatch

import torch
from torch import nn

from h3serve.models.key_map import KeyMap


def load(module: nn.Module, tensors: Mapping[str, torch.Tensor], keys: KeyMap) -> None:
    """Fill `module` from a checkpoint's tensors; a missing or leftover one fails."""
    state = {}
    for entry in keys.entries:
        value = torch.cat([tensors[name] for name in entry.sources])
        state[entry.target] = entry.reorder(value) if entry.reorder else value
    used = {name for entry in keys.entries for name in entry.sources}
    left = {n for n in set(tensors) - used if not any(fnmatch(n, p) for p in keys.unused)}
    assert not left
    module.load_state_dict(state, strict=True)


def dump(module: nn.Module, keys: KeyMap) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors of `module`; sources of one entry are equal parts."""
    state = module.state_dict()
    tensors = {}
    for entry in keys.entries:
        value = state[entry.target]
        value = entry.restore(value) if entry.restore else value
        parts = value.chunk(len(entry.sources))
        tensors |= dict(zip(entry.sources, parts, strict=True))
    return tensors


def fill(module: nn.Module, seed: int) -> nn.Module:
    """Random weights of every parameter, scaled so that activations stay near one."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(module.named_parameters()):
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim > 1:
            drawn = noise / value[0].numel() ** 0.5
        elif name.endswith("bias"):
            drawn = 0.1 * noise
        else:
            drawn = 1 + 0.2 * noise
        value.data.copy_(drawn)
    return module.eval()
