"""The released model's sizes, as data.

Sources: spec/checkpoint.md 1.2, text_encoder.md 7.1, vae_video.md 5.1, vae_audio.md 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LATENT_STATISTICS = {"latents_mean": (0.0,) * 24, "latents_std": (1.0,) * 24}
_SOUND_STATISTICS = {"latents_mean": (0.0,) * 32, "latents_std": (1.0,) * 32}

# Component -> config, each in a spelling that its Config.from_dict reads. Latent statistics belong to
# the trained weights: here they are neutral.
RELEASED: Mapping[str, Mapping[str, Any]] = {
    "transformer": {
        "hidden_size": 5376,
        "num_layers": 50,
        "num_refiner_layers": 2,
        "num_attention_heads": 56,
        "attention_head_dim": 128,
        "ffn_dim": 14336,
        "in_channels": 24,
        "audio_in_channels": 32,
        "patch_size": (1, 2, 2),
        "text_dim": 5120,
        "freq_dim": 256,
        "time_embed_hidden_dim": 5376,
        "time_embed_dim": 2688,
        "rope_freq_dim": 16,
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "qk_norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
    },
    "text_encoder": {
        "model_type": "qwen3_vl",
        "image_token_id": 151655,
        "video_token_id": 151656,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "max_position_embeddings": 262144,
            "num_attention_heads": 64,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "rope_theta": 5000000,
            "vocab_size": 151936,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "in_channels": 3,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 5120,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
    "video_vae": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 24,
        "block_out_channels": (128, 256, 256, 512, 512, 1024),
        "layers_per_block": 2,
        "spatial_downsample_factors": (2, 2, 2, 2, 1, 1),
        "temporal_downsample_factors": (1, 2, 2, 1, 1, 1),
        "norm_num_groups": 32,
        "norm_eps": 1e-6,
        "spatial_padding_mode": "reflect",
        "decoder_num_layers": 36,
        "decoder_num_attention_heads": 32,
        "decoder_attention_head_dim": 64,
        "decoder_num_register_tokens": 4,
        "decoder_ffn_mult": 4,
        "decoder_rope_theta": 100.0,
        "decoder_rope_dim_ratio": 0.75,
        "decoder_norm_eps": 1e-5,
        "clip_length": 17,
        "token_drop": 3,
        **_LATENT_STATISTICS,
    },
    "audio_vae": {
        "encoder_dim": 64,
        "encoder_rates": (2, 4, 4, 5, 5),
        "latent_dim": 2048,
        "latent_channels": 32,
        "num_attention_heads": 8,
        "decoder_dim": 1024,
        "decoder_rates": (5, 5, 2, 2, 2, 2, 2),
        "decoder_kernel_sizes": (9, 9, 4, 4, 4, 4, 4),
        "resblock_kernel_sizes": (3, 7, 11),
        "resblock_dilation_sizes": ((1, 3, 5), (1, 3, 5), (1, 3, 5)),
        "sampling_rate": 32000,
        **_SOUND_STATISTICS,
    },
}
