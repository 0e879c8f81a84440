"""From an opened component to a network with its weights, looked at by the canary."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from h3serve.models.kernels.float8_linear import Float8Linear, use_float8
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.weights.files.rank_parts import Cut, everything
from h3serve.weights.formats.checksums import PROBED, key
from h3serve.weights.formats.load import check_complete, load_weights, nothing, read_tensors
from h3serve.weights.formats.opened_component import OpenedComponent
from h3serve.weights.formats.weight_checks import Finding, examine, precision, report, sampled


def load_component(
    opened: OpenedComponent,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    float8: bool = False,
    skip: Callable[[str], bool] = nothing,
    cut: Cut | None = None,
) -> nn.Module:
    """A network with its weights, checked by the canary; `dtype` is what it computes in.

    Tensors that `skip` names stay in the files.
    What must be float32 (the transformer's islands, most of the VAEs) is so whatever `dtype` is. With `float8`
    the layers that 8 bits are meant for are quantized while they are read. `cut` makes the network smaller before
    its weights come, a rank's share; what was recorded of whole tensors is then not compared.
    CheckpointError names the file, tensor or fault.
    """
    module = opened.build()
    assert not (cut and float8), "8-bit layers are not cut"
    part_of = cut(module) if cut else everything
    if float8:
        use_float8(module, opened.recipe.float8_linears, dtype)
    load_weights(
        module,
        opened.index,
        opened.key_map,
        device=device,
        dtype_of=lambda tensor: opened.dtype_of(tensor, dtype),
        skip=skip,
        part_of=part_of,
    )
    if isinstance(module, TextEncoder):
        module.reset_buffers(device)
    check_complete(module, skip)
    held = {target: value for target, value in module.state_dict().items() if not value.is_meta}
    check_loaded(opened, held | _unquantized(opened, module), whole=cut is None)
    return module


def check_loaded(opened: OpenedComponent, held: Mapping[str, torch.Tensor], *, whole: bool = True) -> None:
    """The canary on weights that were loaded, by our names; CheckpointError names the fault.

    Recorded tensors that were not loaded are read for it; a rank's share, not `whole`, is not compared.
    """
    recorded = opened.recorded if whole else {}
    skipped = set(recorded.get(key(opened.name, opened.partition), {})) - set(held)
    findings = examine(
        opened.name,
        opened.partition,
        tensors={**held, **read_tensors(opened.index, opened.key_map, skipped)},
        original=opened.original,
        recorded=recorded,
    )
    report(opened.index.folder, (*findings, precision_finding(opened)))


def _unquantized(opened: OpenedComponent, module: nn.Module) -> dict[str, torch.Tensor]:
    """What the canary is to see of 8-bit weights: their scales, which show NaN and Inf, and files where it compares."""
    scales = {f"{path}.weight": m.weight_scale for path, m in module.named_modules() if isinstance(m, Float8Linear)}
    compared = {*PROBED[opened.name], *sampled(scales)} & set(scales)
    return {**scales, **read_tensors(opened.index, opened.key_map, compared)}


def precision_finding(opened: OpenedComponent) -> Finding:
    """Are the float32 islands stored as float32?"""
    return precision(opened.index, opened.key_map, lambda tensor: opened.dtype_of(tensor, torch.bfloat16))
