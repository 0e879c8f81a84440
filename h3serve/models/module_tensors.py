"""Parameters and buffers of a module by their dotted names: put in place, taken away, and whether any is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn


def set_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Makes these tensors, by dotted name, the module's parameters and buffers; dtype and device may change."""
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if leaf in owner._buffers:
            owner._buffers[leaf] = tensor
        else:
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)


def empty(module: nn.Module) -> None:
    """Leaves the module's weights without memory: using them by mistake is an error, not noise."""
    held = {name: tensor for name, tensor in module.state_dict().items() if not tensor.is_meta}
    set_tensors(module, {name: torch.empty_like(tensor, device="meta") for name, tensor in held.items()})


def nothing(name: str) -> bool:
    """No tensor is skipped."""
    del name
    return False


def check_complete(module: nn.Module, skip: Callable[[str], bool] = nothing) -> None:
    """AssertionError if a parameter or buffer has no memory, a table that no file holds included.

    `skip` names those that may be without.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if missing := [name for name, tensor in tensors if tensor.is_meta and not skip(name)]:
        raise AssertionError(f"{type(module).__name__} still has no memory for {', '.join(missing)}")
