"""The text encoder: transformers' Qwen3-VL, stopped after decoder layer 49.

The condition is the raw residual stream after layer 49 (`hidden_states[50]`), so the last norm is
an identity and neither the later layers nor the language-model head are built
(spec/text_encoder.md 7.1, 7.2).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import KeyMap, Layout, same

LAYERS = 50
TEXT, IMAGE, VIDEO = 0, 1, 2  # token types

_FILE = "text_encoder/config.json"
_FIELDS = (
    "text_config",
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
_LANGUAGE = "model.language_model"
_VISUAL = "model.visual"
_LAYER_NAMES = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    "self_attn.q_norm",
    "self_attn.k_norm",
)
_BLOCK_NAMES = ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
_MERGER_NAMES = ("norm", "linear_fc1", "linear_fc2")

# Layers that 8 bits are meant for (`float8_linear.use_float8`); the vision tower is small and stays as it is.
FLOAT8_LINEARS = (f"{_LANGUAGE}.layers.*_proj",)


@dataclass(frozen=True)
class TextEncoderConfig:
    """The encoder's `config.json`, as transformers spells it, without its dtype."""

    values: Mapping[str, Any]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TextEncoderConfig:
        """Takes the parsed `config.json`; CheckpointError if it is not a deep enough Qwen3-VL."""
        if values.get("model_type") != "qwen3_vl":
            kind = values.get("model_type")
            raise CheckpointError(f"{_FILE}: model_type is {kind!r}, not 'qwen3_vl'")
        for field in _FIELDS:
            if field not in values:
                raise CheckpointError(f"{_FILE}: {field} is missing")
        config = cls(copy.deepcopy(dict(values)))
        if config.num_layers < LAYERS:
            raise CheckpointError(f"{_FILE}: {config.num_layers} decoder layers, at least {LAYERS} are needed")
        return config

    @property
    def num_layers(self) -> int:
        """Decoder layers in the files, used or not."""
        return self.values["text_config"]["num_hidden_layers"]

    @property
    def width(self) -> int:
        """Features of one encoded token."""
        return self.values["text_config"]["hidden_size"]

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a decoder layer."""
        return self.values["text_config"]["num_key_value_heads"]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        return self.values["text_config"]["vocab_size"]

    @property
    def merge(self) -> int:
        """Patches a side of one vision token."""
        return self.values["vision_config"]["spatial_merge_size"]

    def truncated(self) -> Qwen3VLConfig:
        """transformers' config of the first 50 layers: torch's default dtype, SDPA."""
        values = copy.deepcopy(dict(self.values))
        values["text_config"]["num_hidden_layers"] = LAYERS
        for part in (values, values["text_config"], values["vision_config"]):
            part.pop("dtype", None)
            part.pop("torch_dtype", None)
        config = Qwen3VLConfig.from_dict(values)
        config._attn_implementation = "sdpa"
        return config


@dataclass(frozen=True)
class EncoderInput:
    """One prompt as the encoder takes it: L tokens, and patches batched per modality (7.6).

    `token_ids` and `token_types` (0 text, 1 image, 2 video) are int64 `[L]`; patches float32
    `[n, 1536]`; grids int64 `[images or videos, 3]`. Without images or videos both are None.
    """

    token_ids: torch.Tensor
    token_types: torch.Tensor
    image_patches: torch.Tensor | None = None
    image_grids: torch.Tensor | None = None
    video_patches: torch.Tensor | None = None
    video_grids: torch.Tensor | None = None


class TextEncoder(nn.Module):
    """Computes the token states of one prompt. Parameter names are those of the files."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Qwen3VLModel(config.truncated())
        self.model.language_model.norm = nn.Identity()
        self.eval().requires_grad_(False)

    def reset_buffers(self, device: torch.device | str = "cpu") -> None:
        """Makes the rotary tables anew: no file holds them, and a meta build leaves them empty.

        They stay float32 whatever the weights' dtype: call this last, after any cast.
        """
        for owner, name in (
            (self.model.language_model, "rotary_emb"),
            (self.model.visual, "rotary_pos_emb"),
        ):
            old = getattr(owner, name)
            with torch.device("cpu"):  # then moved, so that every device holds the same numbers
                setattr(owner, name, type(old)(old.config).to(device))

    @torch.no_grad()
    def encode(self, inputs: EncoderInput) -> torch.Tensor:
        """All token states `[L, width]` in the weights' dtype: causal, batch 1, nothing dropped."""
        device = self.model.language_model.embed_tokens.weight.device

        def here(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values.to(device)

        positions = mrope_positions(inputs.token_types, inputs.image_grids, inputs.video_grids, merge=self.config.merge)
        output = self.model(
            input_ids=inputs.token_ids[None].to(device),
            position_ids=positions[:, None].to(device),
            pixel_values=here(inputs.image_patches),
            image_grid_thw=here(inputs.image_grids),
            pixel_values_videos=here(inputs.video_patches),
            video_grid_thw=here(inputs.video_grids),
            use_cache=False,
        )
        return output.last_hidden_state[0]


def mrope_positions(
    token_types: torch.Tensor,
    image_grids: torch.Tensor | None = None,
    video_grids: torch.Tensor | None = None,
    *,
    merge: int = 2,
) -> torch.Tensor:
    """Positions (t, h, w) of each token, int64 `[3, L]` (7.6).

    Text advances all axes together; a block at base b has t = b, h = b + row, w = b + column on
    the merged grid; what follows starts at the largest position plus one. A video has one block per
    pair of frames.
    """
    grids = {IMAGE: _blocks(image_grids), VIDEO: _blocks(video_grids)}
    base, pieces = 0, []
    for kind, count in zip(*torch.unique_consecutive(token_types, return_counts=True), strict=True):
        if kind == TEXT:
            pieces.append(torch.arange(base, base + int(count)).expand(3, -1))
            base += int(count)
            continue
        rows, columns = (side // merge for side in next(grids[int(kind)]))
        assert rows * columns == count, "a vision block and its grid disagree"
        place = torch.cartesian_prod(torch.zeros(1).long(), torch.arange(rows), torch.arange(columns))
        pieces.append(base + place.T)
        base += max(rows, columns)
    return torch.cat(pieces, dim=1)


def _blocks(grids: torch.Tensor | None) -> Iterator[tuple[int, int]]:
    """(patches down, patches across) of every block in order of appearance."""
    for count, down, across in [] if grids is None else grids.tolist():
        yield from [(down, across)] * count


def key_map(config: TextEncoderConfig, layout: Layout) -> KeyMap:  # noqa: ARG001 - both spell alike
    """The tensors of the first 50 layers and the vision tower, as stored (spec/checkpoint.md)."""
    vision = config.values["vision_config"]
    mergers = [
        "merger",
        *(f"deepstack_merger_list.{i}" for i in range(len(vision["deepstack_visual_indexes"]))),
    ]
    vision_names = [
        "patch_embed.proj",
        *(f"blocks.{i}.{name}" for i in range(vision["depth"]) for name in _BLOCK_NAMES),
        *(f"{merger}.{name}" for merger in mergers for name in _MERGER_NAMES),
    ]
    names = [
        f"{_LANGUAGE}.embed_tokens.weight",
        *(f"{_LANGUAGE}.layers.{i}.{name}.weight" for i in range(LAYERS) for name in _LAYER_NAMES),
        f"{_VISUAL}.pos_embed.weight",
        *(f"{_VISUAL}.{name}.{part}" for name in vision_names for part in ("weight", "bias")),
    ]
    unused = (
        "lm_head.weight",
        f"{_LANGUAGE}.norm.weight",
        *(f"{_LANGUAGE}.layers.{i}.*" for i in range(LAYERS, config.num_layers)),
    )
    return KeyMap(same(*names), unused)
