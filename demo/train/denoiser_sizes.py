"""Sizes of the trained demo's transformer and text encoder; all else is as in `demo-random`."""

from __future__ import annotations

from typing import Any

from h3serve.models.key_map import Layout
from h3serve.weights.demo import demo_sizes

HIDDEN = 192
TEXT_WIDTH = 96
TEXT_LAYERS = 4  # decoder layers that are trained; the others of the 51 add nothing


def transformer(layout: Layout = "original") -> dict[str, Any]:
    """`transformer/config.json`: 5 million parameters."""
    sizes = {
        "hidden_size": HIDDEN,
        "num_layers": 6,
        "num_attention_heads": 3,
        "text_dim": TEXT_WIDTH,
        "time_embed_dim": 32,
    }
    if layout == "diffusers":
        sizes |= {"num_refiner_layers": 1, "ffn_dim": 512, "time_embed_hidden_dim": HIDDEN}
    else:
        sizes |= {"token_refiner_num_layers": 1, "ffn_hidden_size": 512, "time_embed_hidden_size": HIDDEN}
        sizes |= {"adaln_out_features": 18 * HIDDEN, "final_adaln_out_features": 2 * HIDDEN}
    return demo_sizes.transformer(layout) | sizes


def text_encoder(vocabulary: dict[str, int]) -> dict[str, Any]:
    """`text_encoder/config.json`, with the ids of the demo's own tokenizer."""
    values = demo_sizes.text_encoder(vocabulary)
    values["text_config"] |= {"hidden_size": TEXT_WIDTH, "intermediate_size": 128}
    values["vision_config"] |= {"out_hidden_size": TEXT_WIDTH}
    return values
