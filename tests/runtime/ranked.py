"""The tiny networks of tests/models, cut for ranks."""

import torch

from h3serve.models.transformer.denoiser import Denoiser, to_compute_dtype
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.runtime.parallel.process_group import Ranks
from h3serve.runtime.parallel.sequence_parallel import shard_sequence
from h3serve.runtime.parallel.tensor_parallel import part_of_state, shard_denoiser
from tests.models.tiny_transformer import tiny_denoiser

# Four heads, so that 2 x 2 ranks have one each.
FOUR_HEADS = TransformerConfig(
    hidden_size=64,
    num_layers=2,
    num_attention_heads=4,
    ffn_dim=160,
    text_dim=48,
    time_embed_hidden_dim=64,
    time_embed_dim=32,
)


def whole(dtype: torch.dtype) -> Denoiser:
    return to_compute_dtype(tiny_denoiser(config=FOUR_HEADS), dtype)


def cut(ranks: Ranks, dtype: torch.dtype) -> Denoiser:
    """This rank's share of `whole`."""
    with torch.device("meta"):
        denoiser = Denoiser(FOUR_HEADS).eval().requires_grad_(False)
    part_of_state(denoiser, shard_denoiser(ranks.tp)(denoiser), whole(dtype).state_dict())
    shard_sequence(denoiser.transformer, ranks.ulysses)
    return denoiser
