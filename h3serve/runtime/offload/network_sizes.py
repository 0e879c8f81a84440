"""Sizes of a checkpoint's networks in bytes, and the placement that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from h3serve.core.errors import CapacityError
from h3serve.core.estimate_memory import Tiles, gib, work_of
from h3serve.core.estimate_work import RELEASED_MODEL, ModelSize
from h3serve.core.limits import Partition, Quality
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.kernels.float8_rows import FLOAT8
from h3serve.models.quality import fuses_encoder
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig
from h3serve.models.transformer.denoiser import is_projection
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae.tile_batches import SHARE, one_tile
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.runtime.machine import Machine, measure
from h3serve.runtime.offload.placement import blocks_of, split
from h3serve.runtime.offload.residency import RELEASED_SIZES, RELEASED_SIZES_8_BITS, Choice, Size, choose
from h3serve.weights.formats.opened_component import Opened, OpenedComponent
from h3serve.weights.formats.released_sizes import RELEASED

DEFAULT_REQUEST = {"task": "t2va", "prompt": "a", "target": {"short_edge": 768, "duration_seconds": 5}}


@dataclass(frozen=True)
class Held:
    """A checkpoint's sizes as it will be held: of each network, for a plan's arithmetic, and of the video VAE."""

    networks: Mapping[str, Size]
    model: ModelSize
    video_vae: VideoVAEConfig


def released(*, float8: bool = False) -> Held:
    """The released model, in bfloat16 but for what has 8 bits."""
    sizes = RELEASED_SIZES_8_BITS if float8 else RELEASED_SIZES
    core, encoder = (sizes[name].total // RELEASED_MODEL.value_bytes for name in ("transformer", "text_encoder"))
    model = replace(RELEASED_MODEL, core_params=core, encoder_params=encoder)
    return Held(sizes, model, VideoVAEConfig.from_dict(RELEASED["video_vae"]))


def held_as(opened: Mapping[Partition, Opened], dtype: torch.dtype, *, float8: bool = False) -> Held:
    """A checkpoint, from its configs alone."""
    first = next(iter(opened.values()))
    sizes = sizes_of(first, len(opened), dtype, float8=float8)
    model = model_size(first["transformer"].config, first["text_encoder"].config, sizes, dtype)
    return Held(sizes, model, first["video_vae"].config)


def choose_for(
    residency: str,
    held: Held,
    *,
    device: torch.device,
    quality: Quality,
    divided: Mapping[str, int] = MappingProxyType({}),
    agree: Callable[[int], int] = int,
    float8: bool = False,
) -> Choice:
    """The placement that the default request needs of this checkpoint, with what the machine has free now.

    `divided` says by how much ranks divide a network's blocks while it is resident; `agree` is the minimum over them.
    """
    plan = Plan.resolve(parse_request(DEFAULT_REQUEST), model=held.model)
    machine = Machine(**{name: agree(value) for name, value in vars(measure(device)).items()})
    batched = device.type == "cuda" and quality != "exact"
    fused = fuses_encoder(held.video_vae, quality, device)
    tiles = tiles_for(held.video_vae, machine.device_bytes if batched else 0, fused=fused)
    work = work_of(plan, tiles=tiles)
    shared = {n: replace(size, block=-(-size.block // divided.get(n, 1))) for n, size in held.networks.items()}
    choice = choose(residency, shared, work, machine)
    if not all(choice.modes[name] == "resident" for name in divided):
        choice = choose(residency, held.networks, work, machine)
    return _with_host(choice) if float8 else choice


def choose_on(machine: Machine, residency: str, plan: Plan, held: Held, *, fused: bool, float8: bool = False) -> Choice:
    """The placement that a request needs of a checkpoint on some machine, whose GPU encodes with our kernels or not."""
    tiles = tiles_for(held.video_vae, machine.device_bytes, fused=fused)
    choice = choose(residency, held.networks, work_of(plan, tiles=tiles), machine)
    return _with_host(choice) if float8 else choice


def _with_host(choice: Choice) -> Choice:
    """CapacityError for 8-bit weights that a host without room for them would have to leave in their files."""
    if choice.in_files:
        raise CapacityError(
            f"8-bit weights are made while loading and kept in host memory: {gib(choice.host_bytes)} are needed, "
            f"{gib(choice.machine.host_free)} are free; without quantization they can stay in their files"
        )
    return choice


def sizes_of(opened: Opened, partitions: int, dtype: torch.dtype, *, float8: bool = False) -> dict[str, Size]:
    """Every network as it will be held: of so many transformers, all but the blocks' AdaLN projections."""
    return {name: _size(one, dtype, partitions, float8=float8) for name, one in opened.items()}


def model_size(
    transformer: TransformerConfig, text_encoder: TextEncoderConfig, sizes: dict[str, Size], dtype: torch.dtype
) -> ModelSize:
    """The sizes that a plan's arithmetic needs."""
    text, value_bytes = text_encoder.values["text_config"], dtype.itemsize
    projection = 18 * transformer.hidden_size * (transformer.time_embed_dim + 1)
    return ModelSize(
        hidden=transformer.hidden_size,
        inner=transformer.inner_dim,
        ffn=transformer.ffn_dim,
        layers=transformer.num_layers,
        core_params=sizes["transformer"].total // value_bytes,
        adaln_params=transformer.num_layers * projection,
        encoder_params=sizes["text_encoder"].total // value_bytes,
        encoder_hidden=text["hidden_size"],
        encoder_ffn=text["intermediate_size"],
        vae_params=(sizes["video_vae"].total + sizes["audio_vae"].total) // 4,
        value_bytes=value_bytes,
    )


def tiles_for(config: VideoVAEConfig, device_bytes: int, *, fused: bool) -> Tiles:
    """The video VAE's tiles as a GPU of that size batches them (`use_vae_tier`)."""
    one, share = one_tile(config, fused=fused), device_bytes // SHARE
    batches = (max(1, share // each) for each in (one.encode_bytes, one.decode_bytes))
    return Tiles(one.encode_bytes, one.image_bytes, one.decode_bytes, *batches)


def _size(opened: OpenedComponent, dtype: torch.dtype, partitions: int, *, float8: bool) -> Size:
    name, module = opened.name, opened.build()
    if float8:
        use_float8(module, opened.recipe.float8_linears, dtype)
    held = {
        key: value.numel() * (value.dtype if value.dtype == FLOAT8 else opened.dtype_of(key, dtype)).itemsize
        for key, value in module.state_dict().items()
        if not (name == "transformer" and is_projection(key))
    }
    blocks = len(blocks_of(module, name))
    rest, *groups = (sum(group.values()) for group in split(held, name, blocks))
    return Size(rest, max(groups, default=0), blocks, partitions if name == "transformer" else 1)
