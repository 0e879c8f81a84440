"""Random inputs of one evaluation at any clip length, and the ways to run it that a benchmark compares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from h3serve.core.limits import Quality
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.quality import use_quality
from h3serve.models.transformer.denoiser import FLOAT8_LINEARS, Denoiser
from h3serve.models.transformer.modulation import Modulation
from h3serve.models.transformer.transformer import StaticInputs
from h3serve.models.transformer.transformer_config import MODALITIES

Velocity = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class StepInputs:
    """What one evaluation takes; timesteps float32 [M], timestep_index int64 [S], text [L, text_dim]."""

    video_rows: torch.Tensor
    audio_rows: torch.Tensor
    text_states: torch.Tensor
    positions: torch.Tensor
    tags: torch.Tensor
    text_index: torch.Tensor
    video_index: torch.Tensor
    audio_index: torch.Tensor
    timesteps: torch.Tensor
    timestep_index: torch.Tensor

    @property
    def rows(self) -> int:
        """S."""
        return len(self.tags)

    def prepare(self, denoiser: Denoiser) -> StaticInputs:
        """The part that a request computes once."""
        indices = {name: getattr(self, name) for name in ("tags", "text_index", "video_index", "audio_index")}
        return denoiser.transformer.prepare(self.text_states, self.positions, **indices)


def random_inputs(layout: Any, denoiser: Denoiser, *, device: torch.device, seed: int = 0) -> StepInputs:
    """Normal values for a `PackedLayout` of text to video; sound and video are at times of their own."""
    generator = torch.Generator(device).manual_seed(seed)
    config = denoiser.config

    def draw(rows: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(rows, width, generator=generator, device=device).to(dtype)

    placed = {n: torch.from_numpy(getattr(layout, n)).to(device) for n in ("text_index", "video_index", "audio_index")}
    tags = torch.from_numpy(layout.tags).to(device)
    return StepInputs(
        video_rows=draw(len(placed["video_index"]), config.video_row_dim),
        audio_rows=draw(len(placed["audio_index"]), config.audio_in_channels),
        text_states=draw(len(placed["text_index"]), config.text_dim, denoiser.transformer.compute_dtype),
        positions=torch.from_numpy(layout.positions).to(device),
        tags=tags,
        **placed,
        timesteps=torch.tensor([0.3, 0.6], device=device),
        timestep_index=(tags == 2).long(),
    )


def quantized_twin(denoiser: Denoiser) -> Denoiser:
    """A denoiser with 8-bit layers that shares every other tensor with the given one, which stays as it is."""
    shared = {id(tensor): tensor for tensor in (*denoiser.parameters(), *denoiser.buffers())}
    twin = copy.deepcopy(denoiser, shared)
    use_float8(twin, FLOAT8_LINEARS, denoiser.transformer.compute_dtype)
    return twin


def evaluation(
    denoiser: Denoiser, inputs: StepInputs, quality: Quality, *, extras: bool = True
) -> Callable[[], Velocity]:
    """One evaluation at a tier, modulation included, as the denoise loop runs it; `extras` as in `use_quality`."""
    device = inputs.tags.device
    static = inputs.prepare(denoiser)

    def run() -> Velocity:
        use_quality(denoiser.transformer, quality, device, extras=extras)
        return _evaluate(denoiser, inputs, static)

    return run


def _evaluate(denoiser: Denoiser, inputs: StepInputs, static: StaticInputs) -> Velocity:
    velocity: Velocity = denoiser.transformer(
        inputs.video_rows,
        inputs.audio_rows,
        static=static,
        modulation=denoiser.modulation(inputs.timesteps),
        timestep_index=inputs.timestep_index,
    )
    return velocity


def float32_velocity(denoiser: Denoiser, inputs: StepInputs) -> Velocity:
    """The same evaluation in float32, a block's weights at a time; text and modulation as given in `denoiser`."""
    static = inputs.prepare(denoiser)
    modulation, network = denoiser.modulation(inputs.timesteps), denoiser.transformer
    use_quality(network, "exact", inputs.tags.device)
    x = network.embed_rows(inputs.video_rows, inputs.audio_rows, static).float()
    index = MODALITIES * inputs.timestep_index + static.tags
    rope = type(static.rope)(*(table.float() for table in static.rope))
    for layer, block in enumerate(network.blocks):
        x = float32(block)(
            x, modulation.blocks[layer].float(), index=index, rope=rope, attention=network.attention, ops=network.ops
        )
    final = Modulation(modulation.blocks, modulation.final.float()).final
    video, audio = float32(network.final_layer)(x, final, index=inputs.timestep_index)
    return video.index_select(0, static.video_index), audio.index_select(0, static.audio_index)


def float32(module: nn.Module) -> nn.Module:
    """A copy in float32."""
    return copy.deepcopy(module).float()
