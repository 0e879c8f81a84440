"""diffusers' networks as peers of `h3serve bench`: built on the meta device and filled with our own tensors.

    h3serve bench step --peer bench/diffusers_peer.py

Where both layouts hold the same rows, the peer's weights are views of ours; the rest are copies.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import diffusers
import torch
from torch import nn

from bench.speed.step_inputs import StepInputs
from h3serve.models.key_map import KeyMap
from h3serve.models.transformer import denoiser as denoiser_file
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.video_vae import video_vae as video_vae_file
from h3serve.models.video_vae.video_vae import VideoVAE


def transformer(ours: Denoiser) -> Callable[[StepInputs], tuple[torch.Tensor, torch.Tensor]]:
    """diffusers' transformer on the same inputs: eager, with the attention that torch chooses."""
    config = asdict(ours.config)
    narrow = {"hidden_size": 64, "num_layers": 1, "num_attention_heads": 1, "ffn_dim": 64, "text_dim": 64}
    model = build(
        diffusers.MiniMaxH3Transformer3DModel, config, narrow, ours.transformer.final_layer.norm.weight.device
    )
    fill(model, ours.state_dict(), denoiser_file.key_map(ours.config, "diffusers"))

    @torch.inference_mode()
    def run(inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        video, audio = model(
            inputs.video_rows[None],
            inputs.audio_rows[None],
            inputs.text_states[None],
            inputs.timesteps,
            inputs.timestep_index,
            inputs.tags,
            inputs.positions,
            inputs.video_index,
            inputs.audio_index,
            inputs.text_index,
            return_dict=False,
        )
        return video[0], audio[0]

    return run


def video_vae(ours: VideoVAE) -> Mapping[str, Callable[[torch.Tensor], torch.Tensor]]:
    """diffusers' video VAE in float32, decoding under float16 autocast as the release does."""
    config = ours.config
    sizes = {
        "block_out_channels": config.channels,
        "norm_num_groups": config.norm_groups,
        "decoder_num_layers": config.decoder_layers,
        "decoder_num_attention_heads": config.heads,
        "latents_mean": config.latents_mean,
        "latents_std": config.latents_std,
    }
    narrow = {"block_out_channels": (32,) * 6, "decoder_num_layers": 1, "decoder_num_attention_heads": 1}
    model = build(diffusers.AutoencoderKLMiniMaxH3, sizes, narrow, ours.quant_conv.weight.device)
    tensors = {name: value.float() for name, value in ours.state_dict().items()}
    fill(model, tensors, video_vae_file.key_map(config, "diffusers"))
    model.enable_tiling()

    @torch.inference_mode()
    def decode(latents: torch.Tensor) -> torch.Tensor:
        with torch.autocast(latents.device.type, torch.float16):
            return model.decode(latents).sample

    @torch.inference_mode()
    def encode(pixels: torch.Tensor) -> torch.Tensor:
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return model.encode(pixels).latent_dist.mean
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    return {"decode": decode, "encode": encode}


def build(kind: Any, config: Mapping[str, Any], narrow: Mapping[str, Any], device: torch.device) -> Any:
    """A model without weights; the buffers that no file holds come from a narrow one, which has the same."""
    with torch.device("meta"):
        model = kind(**config).eval().requires_grad_(False)
    for name, buffer in kind(**{**config, **narrow}).named_buffers():
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, buffer.to(device))
    return model


def fill(model: nn.Module, tensors: Mapping[str, torch.Tensor], keys: KeyMap) -> None:
    """Every tensor of `model`, from ours by the key map of its layout."""
    theirs: dict[str, Any] = {}
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    for entry in keys.entries:
        value = tensors[entry.target]
        value = entry.restore(value) if entry.restore else value
        parts = value.split([shapes[source][0] for source in entry.sources]) if len(entry.sources) > 1 else (value,)
        theirs |= dict(zip(entry.sources, parts, strict=True))
    model.load_state_dict(theirs, strict=True, assign=True)
