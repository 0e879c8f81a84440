"""The MiniMax-H3 transformer for one device and one request (spec/transformer.md).

`prepare` once per request, `forward` once per evaluation. Modulation comes in as an argument,
attention and the element-wise ops are attributes: caching, sharding and fusing happen outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from h3serve.models.kernels.attention import Attention, sdpa
from h3serve.models.kernels.elementwise import PLAIN, Ops, Rope
from h3serve.models.transformer.blocks import Block, FinalLayer, TokenRefiner
from h3serve.models.transformer.modulation import Modulation
from h3serve.models.transformer.transformer_config import MODALITIES, TransformerConfig


def inverse_frequencies(config: TransformerConfig) -> torch.Tensor:
    """float32 [frequencies], one set for all axes; made on the CPU, since pow differs on a GPU."""
    count = config.rope_freq_dim
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32, device="cpu") / (2 * count)
    return 1.0 / config.rope_theta**exponents


def rope_tables(positions: torch.Tensor, config: TransformerConfig, dtype: torch.dtype) -> Rope:
    """Tables for positions [S, 3] (t, h, w), rounded to float32 first; the angles stay float32."""
    frequencies = inverse_frequencies(config).to(positions.device)
    angles = (positions.float()[:, :, None] * frequencies).flatten(1)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))


@dataclass(frozen=True)
class StaticInputs:
    """All that stays the same over a request's evaluations; S rows, of which L are text."""

    text: torch.Tensor  # [L, hidden], refined
    rope: Rope  # 2 x [S, 48]
    tags: torch.Tensor  # int64 [S]: modality of every row
    text_index: torch.Tensor  # int64: where each kind's rows stand in the sequence, conditions first
    video_index: torch.Tensor
    audio_index: torch.Tensor
    condition_video_rows: int  # leading entries of video_index that are conditions
    condition_audio_rows: int


class Transformer(nn.Module):
    """Patch projections, token refiner, main blocks and heads; all but the AdaLN weights."""

    def __init__(self, config: TransformerConfig, *, attention: Attention = sdpa, ops: Ops = PLAIN) -> None:
        super().__init__()
        self.config, self.attention, self.ops = config, attention, ops
        width = config.hidden_size
        self.video_patch_proj = nn.Linear(config.video_row_dim, width)
        self.audio_patch_proj = nn.Linear(config.audio_in_channels, width)
        self.condition_proj = nn.Linear(config.text_dim, width)
        self.token_refiner = TokenRefiner(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_layer = FinalLayer(config)

    @property
    def compute_dtype(self) -> torch.dtype:
        """dtype of the residual stream; read from a norm, which no quantization touches."""
        return self.final_layer.norm.weight.dtype

    def prepare(
        self,
        text_states: torch.Tensor,
        positions: torch.Tensor,
        *,
        tags: torch.Tensor,
        text_index: torch.Tensor,
        video_index: torch.Tensor,
        audio_index: torch.Tensor,
        condition_video_rows: int = 0,
        condition_audio_rows: int = 0,
    ) -> StaticInputs:
        """The part of a request that is the same at every evaluation, on text_states' device.

        text_states [L, text_dim], positions float64 [S, 3], tags int64 [S] (-1, padding, counts as
        video), index lists int64. spec/transformer.md 2.1, 2.2.
        """
        device = text_states.device
        return StaticInputs(
            text=self.token_refiner(self.condition_proj(text_states.to(self.compute_dtype))),
            rope=rope_tables(positions.to(device), self.config, self.compute_dtype),
            tags=tags.to(device).clamp(min=0),
            text_index=text_index.to(device),
            video_index=video_index.to(device),
            audio_index=audio_index.to(device),
            condition_video_rows=condition_video_rows,
            condition_audio_rows=condition_audio_rows,
        )

    def forward(
        self,
        video_rows: torch.Tensor,
        audio_rows: torch.Tensor,
        *,
        static: StaticInputs,
        modulation: Modulation,
        timestep_index: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Velocity towards the data of the target rows: float32 ([Nv_target, 96], [Na_target, 32]).

        video_rows float32 [Nv, 96] and audio_rows float32 [Na, 32] in the order of the index lists;
        timestep_index int64 [S] says which of modulation's timesteps a row is at.
        """
        x = self.embed_rows(video_rows, audio_rows, static)
        x = self.run_blocks(x, modulation, index=MODALITIES * timestep_index + static.tags, rope=static.rope)
        video, audio = self.final_layer(x, modulation.final, index=timestep_index)
        return (
            video.index_select(0, static.video_index[static.condition_video_rows :]),
            audio.index_select(0, static.audio_index[static.condition_audio_rows :]),
        )

    def embed_rows(self, video_rows: torch.Tensor, audio_rows: torch.Tensor, static: StaticInputs) -> torch.Tensor:
        """The packed sequence [S, hidden]; rows of no kind stay zero."""
        x = static.text.new_zeros(len(static.tags), static.text.shape[1])
        video, audio = (
            self.video_patch_proj(video_rows.float()),
            self.audio_patch_proj(audio_rows.float()),
        )
        x.index_copy_(0, static.text_index, static.text)
        x.index_copy_(0, static.video_index, video.to(x.dtype))
        x.index_copy_(0, static.audio_index, audio.to(x.dtype))
        return x

    def run_blocks(self, x: torch.Tensor, modulation: Modulation, *, index: torch.Tensor, rope: Rope) -> torch.Tensor:
        """All main blocks on x [S, hidden]; index [S] is each row's entry in the tables."""
        for layer, block in enumerate(self.blocks):
            x = block(
                x,
                modulation.blocks[layer],
                index=index,
                rope=rope,
                attention=self.attention,
                ops=self.ops,
            )
        return x
