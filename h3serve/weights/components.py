"""The four networks of a checkpoint: how each is configured, built, named and held in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3serve.core.tasks import Partition
from h3serve.models import audio_vae, denoiser, text_encoder, video_vae, video_vae_names
from h3serve.models.audio_vae import AudioVAE, AudioVAEConfig
from h3serve.models.denoiser import Denoiser
from h3serve.models.float8_linear import Float8Linear, use_float8
from h3serve.models.keymap import KeyMap, Layout
from h3serve.models.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.models.transformer_config import TransformerConfig
from h3serve.models.video_vae import VideoVAE
from h3serve.models.video_vae_config import VideoVAEConfig
from h3serve.weights.canary import Finding, examine, precision, report, sampled
from h3serve.weights.index import TensorIndex, read_index
from h3serve.weights.layout import ModelFolder
from h3serve.weights.load import check_complete, load_weights, nothing, read_tensors
from h3serve.weights.parts import Cut, everything
from h3serve.weights.probes import PROBED, key, read_probes


def video_vae_dtype(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """Float32; beside a coarser transformer, float16 where the release decodes so (spec/vae_video.md 5.5)."""
    return video_vae_names.param_dtype(name, torch.float32 if compute_dtype == torch.float32 else torch.float16)


def always_float32(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """The audio VAE: anything coarser is heard (spec/vae_audio.md 6.7)."""
    del name, compute_dtype
    return torch.float32


def always_compute_dtype(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """The text encoder has no precision islands."""
    del name
    return compute_dtype


@dataclass(frozen=True)
class Recipe:
    """What `weights/` needs to know of one network."""

    read_config: Callable[[dict[str, Any]], Any]
    build: Callable[[Any], nn.Module]
    key_map: Callable[[Any, Layout], KeyMap]
    dtype_of: Callable[[str, torch.dtype], torch.dtype]  # (our tensor name, compute dtype)
    float8_linears: tuple[str, ...] = ()  # layers that 8 bits are meant for, as fnmatch patterns


RECIPES: dict[str, Recipe] = {
    "transformer": Recipe(
        TransformerConfig.from_dict, Denoiser, denoiser.key_map, denoiser.param_dtype, denoiser.FLOAT8_LINEARS
    ),
    "text_encoder": Recipe(
        TextEncoderConfig.from_dict,
        TextEncoder,
        text_encoder.key_map,
        always_compute_dtype,
        text_encoder.FLOAT8_LINEARS,
    ),
    "video_vae": Recipe(VideoVAEConfig.from_dict, VideoVAE, video_vae.key_map, video_vae_dtype),
    "audio_vae": Recipe(AudioVAEConfig.from_dict, AudioVAE, audio_vae.key_map, always_float32),
}


def build_on_meta(recipe: Recipe, config: Any) -> nn.Module:
    """The network without memory, in evaluation mode and without gradients."""
    with torch.device("meta"):
        return recipe.build(config).eval().requires_grad_(False)


def check_files(model: ModelFolder, partition: Partition) -> None:
    """CheckpointError if a weight file of any network is missing, cut off or odd: headers alone are read.

    Before anything is loaded, so that the last network's fault is not found minutes after the first one's start.
    """
    for name in RECIPES:
        read_index(model.component(name, partition).weights)


def load_component(
    model: ModelFolder,
    name: str,
    partition: Partition,
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
    recipe, component = RECIPES[name], model.component(name, partition)
    config = recipe.read_config(component.config)
    index, key_map = read_index(component.weights), recipe.key_map(config, model.layout)
    module = build_on_meta(recipe, config)
    assert not (cut and float8), "8-bit layers are not cut"
    part_of = cut(module) if cut else everything
    if float8:
        use_float8(module, recipe.float8_linears, dtype)
    load_weights(
        module,
        index,
        key_map,
        device=device,
        dtype_of=lambda tensor: recipe.dtype_of(tensor, dtype),
        skip=skip,
        part_of=part_of,
    )
    if isinstance(module, TextEncoder):
        module.reset_buffers(device)
    check_complete(module, skip)
    held = {target: value for target, value in module.state_dict().items() if not value.is_meta}
    held |= _unquantized(name, module, index, key_map)
    check_loaded(model, name, partition, held, whole=cut is None)
    return module


def check_loaded(
    model: ModelFolder, name: str, partition: Partition, held: Mapping[str, torch.Tensor], *, whole: bool = True
) -> None:
    """The canary on weights that were loaded, by our names; CheckpointError names the fault.

    Recorded tensors that were not loaded are read for it; a rank's share, not `whole`, is not compared.
    """
    recipe, component = RECIPES[name], model.component(name, partition)
    config = recipe.read_config(component.config)
    index, key_map = read_index(component.weights), recipe.key_map(config, model.layout)
    recorded = read_probes(model.partition(partition).folder) if whole else {}
    skipped = set(recorded.get(key(name, partition), {})) - set(held)
    findings = examine(
        name,
        partition,
        tensors={**held, **read_tensors(index, key_map, skipped)},
        original=recipe.key_map(config, "original"),
        recorded=recorded,
    )
    report(component.weights, (*findings, precision_finding(index, key_map, recipe)))


def _unquantized(name: str, module: nn.Module, index: TensorIndex, key_map: KeyMap) -> dict[str, torch.Tensor]:
    """What the canary is to see of 8-bit weights: their scales, which show NaN and Inf, and files where it compares."""
    scales = {f"{path}.weight": m.weight_scale for path, m in module.named_modules() if isinstance(m, Float8Linear)}
    compared = {*PROBED[name], *sampled(scales)} & set(scales)
    return {**scales, **read_tensors(index, key_map, compared)}


def precision_finding(index: TensorIndex, key_map: KeyMap, recipe: Recipe) -> Finding:
    """Are the float32 islands stored as float32?"""
    return precision(index, key_map, lambda tensor: recipe.dtype_of(tensor, torch.bfloat16))
