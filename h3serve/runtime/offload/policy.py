"""Which placement each network gets: arithmetic, which can be shown, from sizes, the plan and the machine.

Candidates go from quickest to most frugal. The first one whose every stage fits on the device, and leaves room for
what allocators waste, is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, get_args

import torch

from h3serve.core.errors import CapacityError, RequestError
from h3serve.core.estimate_memory import Capacity, Tiles, Work, gib, too_much, work_of
from h3serve.core.estimate_work import GIB, RELEASED_MODEL, ModelSize
from h3serve.core.limits import Partition, Quality
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.core.settings import Residency, one_of
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.kernels.float8_rows import FLOAT8
from h3serve.models.quality import fuses_encoder
from h3serve.models.text_encoder.text_encoder import TextEncoderConfig
from h3serve.models.transformer.denoiser import is_projection
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae.tile_batches import SHARE, one_tile
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig
from h3serve.runtime.machine import Machine, measure
from h3serve.runtime.offload.placement import Mode, blocks_of, split
from h3serve.weights.formats.opened_component import Opened, OpenedComponent
from h3serve.weights.formats.released_sizes import RELEASED

MARGIN = 0.02  # of the device: what allocators round up
MARGIN_BYTES = 3 * GIB // 4  # CUDA context and library workspaces
HOST_SHARE = 0.8  # of the free host memory that weights may take
FRAGMENTS = 3 * GIB  # of a nearly full device: what lies unusable between tensors that come and go (2.2 seen)
DEPTH = 1  # blocks sent for ahead

VAES = ("video_vae", "audio_vae")
STAGES: Mapping[str, tuple[str, ...]] = {  # networks that a stage needs on the device
    "encode text": ("text_encoder",),
    "encode conditions": VAES,
    "denoise": ("transformer",),
    "decode": VAES,
}
AWAY: Mapping[str, Mode] = {"video_vae": "offload", "audio_vae": "offload"}
# Modes of networks; what is not named is resident. The encoder runs once a request: streaming it moves as many
# bytes as offloading it, beside the computing.
CANDIDATES: tuple[Mapping[str, Mode], ...] = (
    {},
    {"text_encoder": "stream"},
    {"text_encoder": "stream", **AWAY},
    {"text_encoder": "stream", "transformer": "offload", **AWAY},
    {"text_encoder": "stream", "transformer": "stream", **AWAY},
)
ALLOWED: Mapping[str, tuple[Mapping[str, Mode], ...]] = {
    "auto": CANDIDATES,
    "resident": CANDIDATES[:1],
    "offload": ({"text_encoder": "offload", "transformer": "offload", **AWAY},),
    "stream": CANDIDATES[-1:],
}
# What the engine's placement is chosen for.
DEFAULT_REQUEST = {"task": "t2va", "prompt": "a", "target": {"short_edge": 768, "duration_seconds": 5}}


@dataclass(frozen=True)
class NetworkSize:
    """Bytes of one network: all but its blocks, one block, and how many blocks; `copies` for both partitions."""

    rest: int
    block: int = 0
    blocks: int = 0
    copies: int = 1

    @property
    def total(self) -> int:
        """One copy, whole."""
        return self.rest + self.block * self.blocks


# The released model in bfloat16, without the AdaLN projections of its blocks.
RELEASED_SIZES: Mapping[str, NetworkSize] = {
    "transformer": NetworkSize(1_723_246_080, 770_725_376, 50),
    "text_encoder": NetworkSize(2_746_358_240, 975_196_672, 50),
    "video_vae": NetworkSize(746_784_816, 134_303_744, 36),
    "audio_vae": NetworkSize(605_306_340),
}
# The same with the linear layers of transformer and text encoder in 8 bits.
RELEASED_SIZES_8_BITS: Mapping[str, NetworkSize] = {
    **RELEASED_SIZES,
    "transformer": NetworkSize(1_723_246_080, 385_373_696, 50),
    "text_encoder": NetworkSize(2_746_358_240, 487_608_832, 50),
}


@dataclass(frozen=True)
class Choice:
    """The mode of every network, how many streamed blocks are resident, where the host side is, and the arithmetic."""

    modes: Mapping[str, Mode]
    resident_blocks: int
    in_files: bool  # host side: the mapped files (shared) instead of memory of this process
    peaks: Mapping[str, int]  # device bytes per stage
    budget: int
    host_bytes: int
    machine: Machine
    sizes: Mapping[str, NetworkSize] = field(repr=False)

    @property
    def peak(self) -> int:
        """Predicted runtime peak on the device."""
        return max(self.peaks.values())

    def describe(self) -> dict[str, Any]:
        """The same as JSON-ready values, in bytes."""
        return {
            "modes": dict(self.modes),
            "resident_blocks": self.resident_blocks,
            "host_side": "files" if self.in_files else "memory",
            "peak_bytes": dict(self.peaks),
            "budget_bytes": self.budget,
            "host_bytes": self.host_bytes,
        }

    def lines(self) -> list[str]:
        """The arithmetic, for people."""
        modes = ", ".join(f"{name} {mode}" for name, mode in self.modes.items())
        streams = "stream" in self.modes.values()
        where = "left in their files" if self.in_files else "in host memory"
        host = f"{gib(self.host_bytes)} {where}, {gib(self.machine.host_free)} free"
        return [
            f"placement   {modes}" + (f"; {self.resident_blocks} transformer blocks stay" if streams else ""),
            "weights     " + ", ".join(f"{name} {gib(size.total)}" for name, size in self.sizes.items()),
            "device      " + ", ".join(f"{stage} {gib(peak)}" for stage, peak in self.peaks.items()),
            f"            peak {gib(self.peak)} of {gib(self.budget)} usable ({gib(self.machine.device_free)} free)",
            f"host        {host}",
        ]


def capacity_of(choice: Choice, tiles: Tiles) -> Capacity:
    """Returns what the placed weights leave for requests; resident blocks of a streamed network count as free."""
    nothing = Work(0, dict.fromkeys(STAGES, 0))
    held = {
        stage: _peak(stage, users, choice.modes, choice.sizes, nothing, choice.in_files)
        for stage, users in STAGES.items()
    }
    return Capacity(held, choice.budget, choice.machine.device_free, tiles)


def resident_beside(choice: Choice, work: Work, *, adapters: int = 0) -> int:
    """Returns how many blocks of a streamed transformer may be resident beside this work and bytes of adapters."""
    if choice.modes["transformer"] != "stream":
        return 0
    held = adapters + _peak("denoise", STAGES["denoise"], choice.modes, choice.sizes, work, choice.in_files)
    size = choice.sizes["transformer"]
    return max(0, min(size.blocks - DEPTH - 1, (choice.budget - FRAGMENTS - held) // max(1, size.block)))


def choose(residency: str, sizes: Mapping[str, NetworkSize], work: Work, machine: Machine) -> Choice:
    """The quickest placement that fits.

    RequestError for an unknown residency, CapacityError with the numbers if nothing allowed fits.
    """
    if residency not in get_args(Residency):
        raise RequestError("residency", residency, one_of(Residency))
    budget = int(machine.device_free - MARGIN * machine.device_bytes) - MARGIN_BYTES
    choices = [_choice(modes, sizes, work, machine, budget) for modes in ALLOWED[residency]]
    fitting = [choice for choice in choices if choice.peak <= budget]
    if fitting:
        return next((choice for choice in fitting if choice.peak + FRAGMENTS <= budget), fitting[-1])
    nearest = min(choices, key=lambda choice: choice.peak)
    stage = max(nearest.peaks, key=lambda name: nearest.peaks[name])
    frugal = "" if residency in ("auto", "stream") else "; --residency stream needs least"
    raise too_much(stage, nearest.peak, usable=budget, free=machine.device_free, advice=frugal)


def _choice(
    modes: Mapping[str, Mode], sizes: Mapping[str, NetworkSize], work: Work, machine: Machine, budget: int
) -> Choice:
    full: dict[str, Mode] = {name: modes.get(name, "resident") for name in sizes}
    host = sum(size.total * size.copies for name, size in sizes.items() if full[name] != "resident")
    in_files = host > HOST_SHARE * machine.host_free
    peaks = {stage: _peak(stage, users, full, sizes, work, in_files) for stage, users in STAGES.items()}
    choice = Choice(full, 0, in_files, peaks, budget, host, machine, sizes)
    blocks = resident_beside(choice, work)
    peaks["denoise"] += blocks * sizes["transformer"].block
    return replace(choice, resident_blocks=blocks)


def _peak(
    stage: str,
    users: Sequence[str],
    modes: Mapping[str, Mode],
    sizes: Mapping[str, NetworkSize],
    work: Work,
    in_files: bool,
) -> int:
    """Device bytes of one stage: resident networks, those that come for the stage, the slab, and the work itself."""
    total = work.slab + work.stages[stage]
    for name, size in sizes.items():
        landing = max(size.rest, size.block) if in_files else 0  # stored bytes on the device, before they are in order
        if modes[name] == "resident":
            total += size.total * size.copies
        elif name in users and modes[name] == "offload":
            total += size.total + landing
        elif name in users:
            total += size.rest + min(size.blocks, DEPTH + 1) * size.block + landing
    return total


@dataclass(frozen=True)
class Held:
    """A checkpoint's sizes as it will be held: of each network, for a plan's arithmetic, and of the video VAE."""

    networks: Mapping[str, NetworkSize]
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
    smallest: Callable[[int], int] = int,
    float8: bool = False,
) -> Choice:
    """The placement that the default request needs of this checkpoint, with what the machine has free now.

    `divided`: by how much ranks divide a network's blocks while it is resident; `smallest` is the minimum over them.
    """
    plan = Plan.resolve(parse_request(DEFAULT_REQUEST), model=held.model)
    machine = Machine(**{name: smallest(value) for name, value in vars(measure(device)).items()})
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


def sizes_of(opened: Opened, partitions: int, dtype: torch.dtype, *, float8: bool = False) -> dict[str, NetworkSize]:
    """Every network as it will be held: of so many transformers, all but the blocks' AdaLN projections."""
    return {name: _size(one, dtype, partitions, float8=float8) for name, one in opened.items()}


def model_size(
    transformer: TransformerConfig, text_encoder: TextEncoderConfig, sizes: dict[str, NetworkSize], dtype: torch.dtype
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
    """The video VAE's tiles as a GPU of that size batches them (`use_vae_quality`)."""
    one, share = one_tile(config, fused=fused), device_bytes // SHARE
    batches = (max(1, share // each) for each in (one.encode_bytes, one.decode_bytes))
    return Tiles(one.encode_bytes, one.image_bytes, one.decode_bytes, *batches)


def _size(opened: OpenedComponent, dtype: torch.dtype, partitions: int, *, float8: bool) -> NetworkSize:
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
    return NetworkSize(rest, max(groups, default=0), blocks, partitions if name == "transformer" else 1)
