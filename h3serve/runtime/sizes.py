"""Sizes of a checkpoint's networks in bytes, and the placement that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from h3serve.core.capacity import Tiles, gib, work_of
from h3serve.core.cost import ModelSize
from h3serve.core.errors import CapacityError
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.core.tasks import Partition
from h3serve.models.float8 import FLOAT8
from h3serve.models.float8_linear import use_float8
from h3serve.models.text_encoder import TextEncoderConfig
from h3serve.models.transformer_config import TransformerConfig
from h3serve.models.video_vae_config import VideoVAEConfig
from h3serve.models.video_vae_memory import SHARE, decode_tile_bytes, encode_tile_bytes
from h3serve.runtime.machine import Machine, measure
from h3serve.runtime.placement import blocks_of, split
from h3serve.runtime.rebuild import is_projection
from h3serve.runtime.residency import RELEASED_SIZES, RELEASED_SIZES_8_BITS, Choice, Size, choose
from h3serve.weights.opened import Opened, OpenedComponent
from h3serve.weights.released import RELEASED

DEFAULT_REQUEST = {"task": "t2va", "prompt": "a", "target": {"short_edge": 768, "duration_seconds": 5}}


def choose_for(
    residency: str,
    opened: Mapping[Partition, Opened],
    *,
    device: torch.device,
    dtype: torch.dtype,
    divided: Mapping[str, int] = MappingProxyType({}),
    agree: Callable[[int], int] = int,
    float8: bool = False,
) -> Choice:
    """The placement that the default request needs of these checkpoints, with what the machine has free now.

    `divided` says by how much ranks divide a network's blocks while it is resident; `agree` is the minimum over them.
    """
    first = next(iter(opened.values()))
    sizes = sizes_of(first, len(opened), dtype, float8=float8)
    configs = {name: first[name].config for name in ("transformer", "text_encoder", "video_vae")}
    model = model_size(configs["transformer"], configs["text_encoder"], sizes, dtype)
    plan = Plan.resolve(parse_request(DEFAULT_REQUEST), model=model)
    machine = Machine(**{name: agree(value) for name, value in vars(measure(device)).items()})
    tiles = tiles_for(configs["video_vae"], machine.device_bytes if device.type == "cuda" else 0)
    work = work_of(plan, tiles=tiles, value_bytes=dtype.itemsize)
    shared = {n: replace(size, block=-(-size.block // divided.get(n, 1))) for n, size in sizes.items()}
    choice = choose(residency, shared, work, machine)
    if not all(choice.modes[name] == "resident" for name in divided):
        choice = choose(residency, sizes, work, machine)
    return _with_host(choice) if float8 else choice


def choose_released(residency: str, plan: Plan, machine: Machine, *, float8: bool = False) -> Choice:
    """The placement that a request needs of the released model on some machine."""
    config = VideoVAEConfig.from_dict(RELEASED["video_vae"])
    tiles = tiles_for(config, machine.device_bytes)
    sizes = RELEASED_SIZES_8_BITS if float8 else RELEASED_SIZES
    choice = choose(residency, sizes, work_of(plan, tiles=tiles), machine)
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
    )


def tiles_for(config: VideoVAEConfig, device_bytes: int) -> Tiles:
    """The video VAE's tiles as a GPU of that size batches them (`use_vae_tier`)."""
    encoded, decoded = encode_tile_bytes(config), decode_tile_bytes(config)
    share = device_bytes // SHARE
    return Tiles(encoded, decoded, max(1, share // encoded), max(1, share // decoded))


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
