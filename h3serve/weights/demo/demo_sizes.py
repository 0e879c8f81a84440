"""Sizes of the demo checkpoint, in both layouts' spelling.

Widths and depths are small. Whatever the release lets one write down as a constant is the released
value: head width 128 and 16 rotary frequencies, 17/3 temporal chunks, 16x/4x, 24 and 32 channels,
hop 800, 32 kHz, 2304 learned vision positions, 50 decoder layers.
"""

from __future__ import annotations

from typing import Any

from h3serve.core.geometry import SizeRules
from h3serve.core.limits import Partition
from h3serve.models.key_map import Layout
from h3serve.weights.files.checkpoint_folder import MARKER, SCHEMA_VERSION, SigmaShifts, tasks_of

TEXT_WIDTH = 64
TEXT_LAYERS = 51  # one more than is used, so that dropping is part of every load
SHIFTS = SigmaShifts(video=12.0, audio=3.0)
# References are as small as the clips that a CPU can make.
SIZE_RULES = SizeRules(max_canvas_area=256 * 448, picture_short_edge=128, clip_short_edge=64)

Statistics = dict[str, list[float]]  # latents_mean and latents_std


def transformer(layout: Layout) -> dict[str, Any]:
    """`transformer/config.json`."""
    hidden, time_embed = 64, 32
    shared = {
        "hidden_size": hidden,
        "num_layers": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 128,
        "patch_size": [1, 2, 2],
        "text_dim": TEXT_WIDTH,
        "time_embed_dim": time_embed,
        "norm_eps": 1e-5,
        "qk_norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
    }
    if layout == "diffusers":
        return shared | {
            "_class_name": "MiniMaxH3Transformer3DModel",
            "num_refiner_layers": 2,
            "ffn_dim": 160,
            "in_channels": 24,
            "audio_in_channels": 32,
            "freq_dim": 256,
            "time_embed_hidden_dim": hidden,
            "rope_freq_dim": 16,
            "rope_theta": 10000.0,
        }
    return shared | {
        "_class_name": "MiniMaxH3DiTModel",
        "token_refiner_num_layers": 2,
        "ffn_hidden_size": 160,
        "latents_dim": 24,
        "audio_latents_dim": 32,
        "timestep_input_dim": 256,
        "time_embed_hidden_size": hidden,
        "adaln_out_features": 18 * hidden,
        "final_adaln_out_features": 2 * hidden,
        "rope_inv_freq_len": 16,
    }


def video_vae(layout: Layout, statistics: Statistics) -> dict[str, Any]:
    """`vae/config.json`, or `video_vae/config.json` with `source/config.json` under "source"."""
    if layout == "diffusers":
        return {
            "_class_name": "AutoencoderKLMiniMaxH3",
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 24,
            "block_out_channels": [4, 8, 8, 16, 16, 32],
            "layers_per_block": 2,
            "spatial_downsample_factors": [2, 2, 2, 2, 1, 1],
            "temporal_downsample_factors": [1, 2, 2, 1, 1, 1],
            "norm_num_groups": 4,
            "norm_eps": 1e-6,
            "spatial_padding_mode": "reflect",
            "decoder_num_layers": 2,
            "decoder_num_attention_heads": 2,
            "decoder_attention_head_dim": 64,
            "decoder_num_register_tokens": 4,
            "decoder_ffn_mult": 4,
            "decoder_rope_theta": 100.0,
            "decoder_rope_dim_ratio": 0.75,
            "decoder_norm_eps": 1e-5,
            "clip_length": 17,
            "token_drop": 3,
            **statistics,
        }
    source = {
        "_class_name": "AutoencoderKLLegacy",
        "causal_decoder": False,
        "causal_encoder": True,
        "ch": 4,
        "ch_mult": [1, 2, 2, 4, 4, 8],
        "in_channels": 3,
        "norm_num_groups": 4,  # not in the release's file, whose value is 32
        "num_res_blocks": 2,
        "out_ch": 3,
        "padding_mode": "reflect",
        "pixel_norm_type": "imagenet",
        "space_down": [2, 2, 2, 2, 1, 1],
        "time_down": [1, 2, 2, 1, 1, 1],
        "use_3d_conv": True,
        "use_t_isolated_gn": True,
        "use_vit_decoder": True,
        "vit_decoder_kwargs": {
            "dim_head": 64,
            "ffn_activation_fn": "silu",
            "ffn_use_gated": True,
            "heads": 2,
            "norm_affine": True,
            "norm_type": "rms_norm",
            "num_layers": 2,
            "qk_norm_affine": False,
            "qk_norm_type": "rms_norm",
            "rope_dim_ratio": 0.75,
            "rope_theta": 100.0,
        },
        "z_channels": 24,
    }
    return {
        "_class_name": "MiniMaxH3VideoVAE",
        "source": source,
        "source_path": "source",
        "source_safetensors_path": "model.safetensors",
        "latent_channels": 24,
        "vae_clip_length": 17,
        "vae_token_drop": 3,
        "vae_encoder_tiling": 1,
        "vae_decoder_tiling": 1,
        "vae_tile_size": 256,
        "vae_tile_overlap_min": 64,
        **statistics,
    }


def audio_vae(layout: Layout, statistics: Statistics) -> dict[str, Any]:
    """`audio_vae/config.json`; in the original layout with `metadata.json` under "metadata"."""
    sizes = {
        "encoder_dim": 4,
        "encoder_rates": [2, 4, 4, 5, 5],
        "latent_dim": 256,
        "decoder_dim": 128,
        "decoder_rates": [5, 5, 2, 2, 2, 2, 2],
    }
    if layout == "original":
        kwargs = {"attn_proj": True, "decoder_type": "bigvgan", "sample_rate": 32000, "vae_latent_channels": 32}
        return {
            "_class_name": "MiniMaxH3AudioVAE",
            "output_channel": 2,
            "sample_rate": 32000,
            "latent_channels": 32,
            "metadata": {"kwargs": sizes | kwargs},
            **statistics,
        }
    return {
        "_class_name": "AutoencoderKLMiniMaxH3Audio",
        **sizes,
        "latent_channels": 32,
        "decoder_kernel_sizes": [9, 9, 4, 4, 4, 4, 4],
        "num_attention_heads": 8,
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "sampling_rate": 32000,
        **statistics,
    }


def text_encoder(vocabulary: dict[str, int]) -> dict[str, Any]:
    """`text_encoder/config.json`, with the token ids of the demo's own tokenizer."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": False,
        "image_token_id": vocabulary["<|image_pad|>"],
        "video_token_id": vocabulary["<|video_pad|>"],
        "vision_start_token_id": vocabulary["<|vision_start|>"],
        "vision_end_token_id": vocabulary["<|vision_end|>"],
        "text_config": {
            "model_type": "qwen3_vl_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": vocabulary["<|endoftext|>"],
            "eos_token_id": vocabulary["<|im_end|>"],
            "dtype": "bfloat16",
            "head_dim": 32,
            "hidden_act": "silu",
            "hidden_size": TEXT_WIDTH,
            "initializer_range": 0.02,
            "intermediate_size": 64,
            "max_position_embeddings": 262144,
            "num_attention_heads": 2,
            "num_hidden_layers": TEXT_LAYERS,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
            "rope_theta": 5000000,
            "use_cache": True,
            "vocab_size": len(vocabulary),
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "deepstack_visual_indexes": [1, 2, 3],
            "depth": 4,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 64,
            "num_heads": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": TEXT_WIDTH,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


COMPONENT_CLASSES = {
    "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "processor": ["transformers", "Qwen3VLProcessor"],
}


def partition_index(partition: Partition) -> dict[str, Any]:
    """`model_index.json` of an original partition, with the release's own block."""
    return {
        "_class_name": "MiniMaxH3Pipeline",
        **COMPONENT_CLASSES,
        "video_vae": ["diffusers", "MiniMaxH3VideoVAE"],
        "audio_vae": ["diffusers", "MiniMaxH3AudioVAE"],
        "scheduler": None,
        "transformer": ["diffusers", "MiniMaxH3DiTModel"],
        MARKER: {
            "schema_version": SCHEMA_VERSION,
            "partition": partition,
            "tasks": list(tasks_of(partition)),
            "task_aliases": {},
            "sigma_shift_scales": {"video": SHIFTS.video, "audio": SHIFTS.audio},
        },
    }


def diffusers_index() -> dict[str, Any]:
    """`modular_model_index.json` of the diffusers layout."""
    classes = COMPONENT_CLASSES | {
        "vae": ["diffusers", "AutoencoderKLMiniMaxH3"],
        "audio_vae": ["diffusers", "AutoencoderKLMiniMaxH3Audio"],
        "transformer": ["diffusers", "MiniMaxH3Transformer3DModel"],
        "transformer_ref": ["diffusers", "MiniMaxH3Transformer3DModel"],
        "scheduler": ["diffusers", "MiniMaxH3Scheduler"],
        "audio_scheduler": ["diffusers", "MiniMaxH3Scheduler"],
    }
    index: dict[str, Any] = {"_class_name": "MiniMaxH3ModularPipeline", "_blocks_class_name": "MiniMaxH3Blocks"}
    for name, kind in classes.items():
        place = {"pretrained_model_name_or_path": ".", "subfolder": name, "variant": None, "revision": None}
        index[name] = [*kind, {"type_hint": kind, **place}]
    return index


def scheduler(shift: float) -> dict[str, Any]:
    """`scheduler_config.json`."""
    return {"_class_name": "MiniMaxH3Scheduler", "shift": shift}


def networks(vocabulary: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Every network's config, as `released.RELEASED` has the release's; statistics that change no latent."""
    plain = {count: {"latents_mean": [0.0] * count, "latents_std": [1.0] * count} for count in (24, 32)}
    return {
        "transformer": transformer("original"),
        "text_encoder": text_encoder(vocabulary),
        "video_vae": video_vae("diffusers", plain[24]),
        "audio_vae": audio_vae("diffusers", plain[32]),
    }
