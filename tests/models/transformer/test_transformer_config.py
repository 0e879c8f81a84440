import json
from typing import Any

import pytest

from h3serve.core.errors import CheckpointError
from h3serve.models.transformer.transformer_config import TransformerConfig
from tests.paths import official

ORIGINAL: dict[str, Any] = {
    "_class_name": "MiniMaxH3DiTModel",
    "hidden_size": 64,
    "num_layers": 3,
    "token_refiner_num_layers": 1,
    "num_attention_heads": 3,
    "attention_head_dim": 128,
    "ffn_hidden_size": 160,
    "latents_dim": 24,
    "audio_latents_dim": 32,
    "patch_size": [1, 2, 2],
    "text_dim": 48,
    "timestep_input_dim": 256,
    "time_embed_hidden_size": 72,
    "time_embed_dim": 40,
    "adaln_out_features": 18 * 64,
    "final_adaln_out_features": 2 * 64,
    "rope_inv_freq_len": 16,
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-6,
    "final_norm_eps": 1e-4,
}


@pytest.mark.parametrize("folder", ["FL2VA/transformer", "transformer"])
def test_released_configs_are_the_defaults(folder: str) -> None:
    values = json.loads((official() / folder / "config.json").read_text())
    assert TransformerConfig.from_dict(values) == TransformerConfig()


def test_original_names() -> None:
    config = TransformerConfig.from_dict(ORIGINAL)
    assert (config.num_refiner_layers, config.ffn_dim, config.time_embed_hidden_dim) == (1, 160, 72)
    assert (config.in_channels, config.audio_in_channels, config.freq_dim) == (24, 32, 256)
    assert (config.rope_freq_dim, config.rope_theta, config.qk_norm_eps) == (16, 10000.0, 1e-6)
    assert (config.inner_dim, config.video_row_dim) == (384, 96)


@pytest.mark.parametrize("name", [n for n in ORIGINAL if n[0] != "_" and "adaln" not in n])
def test_a_missing_size_is_named(name: str) -> None:
    values = {key: value for key, value in ORIGINAL.items() if key != name}
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        TransformerConfig.from_dict(values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"time_table_size": 1025, "adaln_rank": 8}, "adaln_rank, time_table_size is not understood"),
        ({"adaln_out_features": 64}, "adaln_out_features is 64, not 1152"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a positive number"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"text_dim": 48.0}, "text_dim is 48.0"),
        ({"num_layers": True}, "num_layers is True"),
        ({"patch_size": [2, 2]}, r"patch_size is \[2, 2\], not three sizes"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        TransformerConfig.from_dict(ORIGINAL | change)
