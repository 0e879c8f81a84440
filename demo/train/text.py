"""The text encoder while it is trained: many presentations at once, with gradients.

The modules are those of `models/text_encoder/`; only the first decoder layers are run, since the others
add nothing. Causal attention lets shorter presentations be padded at their end without a mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn
from torch.nn import functional as F

from demo.train.denoiser_sizes import TEXT_LAYERS, text_encoder
from h3serve.models.text_encoder.text_encoder import TextEncoder, TextEncoderConfig
from h3serve.models.text_encoder.vision_patches import FRAMES_PER_BLOCK, MERGE, MIDDLE, PATCH, SQUARE
from h3serve.weights.demo import demo_weights
from h3serve.weights.demo.demo_tokenizer import SAMPLE, build_tokenizer

VOCABULARY = 2000  # at most: words of the captions are whole tokens, and there are some hundred of them
EMBEDDING_STD = 0.5
VISION_SCALE = 0.3  # of what the untrained vision tower adds to a token


@dataclass(frozen=True)
class Seen:
    """Vision tokens: their place in the flattened [B*L] tokens, features [n, width], one more set per early layer."""

    index: Tensor
    features: Tensor
    deep: tuple[Tensor, ...]


def caption_tokenizer(captions: Iterable[str]) -> Backend:
    """A tokenizer whose words are those of captions."""
    return build_tokenizer([*SAMPLE, *captions], VOCABULARY)


@torch.no_grad()
def new_encoder(backend: Backend, *, seed: int = 0) -> TextEncoder:
    """A text encoder in float32, ready to be trained: later layers add nothing, the vision tower stays as it is."""
    config = TextEncoderConfig.from_dict(text_encoder(backend.get_vocab(with_added_tokens=True)))
    generator = torch.Generator().manual_seed(seed)
    encoder = TextEncoder(config)
    drawn = demo_weights.text_encoder(config, generator)
    for name, parameter in encoder.named_parameters():
        parameter.copy_(drawn[name])
    language, visual = encoder.model.language_model, encoder.model.visual
    language.embed_tokens.weight.mul_(EMBEDDING_STD)
    for merger in (visual.merger, *visual.deepstack_merger_list):
        merger.linear_fc2.weight.mul_(VISION_SCALE)
        merger.linear_fc2.bias.zero_()
    for number, layer in enumerate(language.layers):
        trained = number < TEXT_LAYERS
        layer.requires_grad_(trained)
        for gain in (layer.input_layernorm, layer.post_attention_layernorm):
            gain.weight.fill_(1.0)
        for gain in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            gain.weight.fill_(1.0)
        if not trained:
            for linear in (m for m in layer.modules() if isinstance(m, nn.Linear)):
                linear.weight.zero_()
    language.embed_tokens.requires_grad_(True)
    return encoder


def token_states(encoder: TextEncoder, ids: Tensor, positions: Tensor, seen: Seen | None = None) -> Tensor:
    """States [B, L, width] of ids [B, L], padded at their ends with anything; positions int64 [3, B, L]."""
    language: Any = encoder.model.language_model
    x = language.embed_tokens(ids)
    shape = x.shape
    if seen is not None:
        x = x.flatten(0, 1).index_copy(0, seen.index, seen.features.to(x.dtype)).view(shape)
    cos, sin = language.rotary_emb(x, positions)
    rope = cos[:, None], sin[:, None]
    for number, layer in enumerate(language.layers[:TEXT_LAYERS]):
        x = x + _attend(layer.self_attn, _norm(x, layer.input_layernorm), rope)
        h = _norm(x, layer.post_attention_layernorm)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(h)) * layer.mlp.up_proj(h))
        if seen is not None and number < len(seen.deep):
            x = x.flatten(0, 1).index_add(0, seen.index, seen.deep[number].to(x.dtype)).view(shape)
    return x


def _norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _attend(attention: Any, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Causal, with grouped keys and values."""
    split = (-1, attention.head_dim)
    q = _norm(attention.q_proj(x).unflatten(-1, split), attention.q_norm).transpose(1, 2)
    k = _norm(attention.k_proj(x).unflatten(-1, split), attention.k_norm).transpose(1, 2)
    v = attention.v_proj(x).unflatten(-1, split).transpose(1, 2)
    groups = attention.num_key_value_groups
    k, v = (part.repeat_interleave(groups, dim=1) for part in (_turn(k, rope), v))
    out = F.scaled_dot_product_attention(_turn(q, rope), k, v, is_causal=True, scale=attention.scaling)
    states: Tensor = attention.o_proj(out.transpose(1, 2).flatten(2))
    return states


def _turn(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-second, first), dim=-1) * rope[1]


@torch.no_grad()
def see(encoder: TextEncoder, patches: Tensor, grid: tuple[int, int, int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Features [B, n, width], and those for the early layers, of B pictures or clips: patches [B, m, 1536].

    A clip's frame pairs are blocks of their own, as in the encoder's ordinary path.
    """
    visual: Any = encoder.model.visual
    blocks, rows, columns = grid
    grids = torch.tensor([[1, rows, columns]] * (blocks * len(patches)), device=patches.device)
    out = visual(patches.flatten(0, 1).to(visual.dtype), grid_thw=grids, return_dict=True)
    split = (len(patches), -1)
    return out.pooler_output.unflatten(0, split), tuple(f.unflatten(0, split) for f in out.deepstack_features)


def patches_of(frames: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """`vision_patches.py` for B images or videos of sampled frames, on their device: uint8 [B, F, H, W, 3].

    A resize rounds after each of its two passes as the integer filter does; values may differ by two of 255.
    """
    blocks, down, across = grid
    batch, count = frames.shape[:2]
    pixels = frames.flatten(0, 1).permute(0, 3, 1, 2).float()
    size = down * PATCH, across * PATCH
    if pixels.shape[2:] != size:
        for pass_size in ((pixels.shape[2], size[1]), size):
            pixels = F.interpolate(pixels, pass_size, mode="bicubic", antialias=True).round().clamp(0, 255)
    pixels = pixels.unflatten(0, (batch, count))
    pixels = torch.cat([pixels, pixels[:, -1:].expand(-1, blocks * FRAMES_PER_BLOCK - count, -1, -1, -1)], dim=1)
    shape = (batch, blocks, FRAMES_PER_BLOCK, 3, size[0] // SQUARE, MERGE, PATCH, size[1] // SQUARE, MERGE, PATCH)
    # -> sample, pair, square down, square across, patch down, patch across, channel, frame, y, x
    cut = pixels.reshape(shape).permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9)
    return cut.flatten(6).flatten(1, 5).sub(MIDDLE).div(MIDDLE)
