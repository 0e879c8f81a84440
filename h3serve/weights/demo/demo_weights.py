"""Random weights that behave: finite, not constant, and felt at the output.

Scales are chosen so that activations stay near one, attention is sharp enough for a changed prompt or
image to matter, images are not saturated and sound has an rms of about 0.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn

from h3serve.models.audio_vae.audio_vae import AudioVAE, AudioVAEConfig
from h3serve.models.text_encoder.text_encoder import LAYERS, TextEncoder, TextEncoderConfig
from h3serve.models.transformer.denoiser import Denoiser, param_dtype
from h3serve.models.transformer.transformer_config import TransformerConfig
from h3serve.models.video_vae.video_vae import VideoVAE
from h3serve.models.video_vae.video_vae_config import VideoVAEConfig

RMS = 0.2  # of the demo's sound


class Draw(NamedTuple):
    """Normal values; `fan_in` scales them by 1/sqrt(inputs of one output)."""

    mean: float
    spread: float
    fan_in: bool = False


MATRIX = Draw(0.0, 1.0, fan_in=True)
GAIN = Draw(1.0, 0.15)
BIAS = Draw(0.0, 0.1)
SHARP = Draw(1.5, 0.2)

# First match wins; what matches nothing is a MATRIX, a GAIN or a BIAS.
TRANSFORMER = {
    "*.q_norm.weight": SHARP,
    "*.k_norm.weight": SHARP,
    "modulation.time_embedder.*.weight": Draw(0.0, 2.0, fan_in=True),
    "modulation.blocks.*.weight": Draw(0.0, 0.5, fan_in=True),
    "modulation.blocks.*.bias": Draw(0.4, 0.25),
    "modulation.final_layer.*.weight": Draw(0.0, 0.3, fan_in=True),
    "modulation.final_layer.*.bias": Draw(0.0, 0.2),
}
VIDEO_VAE = {
    "quant_conv.weight": Draw(0.0, 1.5, fan_in=True),
    "*.scale[12]": Draw(0.6, 0.15),
    "*register_tokens": Draw(0.0, 1.0),
    "decoder.proj_out.weight": Draw(0.0, 0.7, fan_in=True),
}
AUDIO_VAE = {
    "encoder.*alpha": Draw(1.0, 0.2),
    "*alpha": Draw(0.0, 0.3),
    "*beta": Draw(0.0, 0.3),
    "mean_proj.weight": Draw(0.0, 2.0, fan_in=True),
    "logs_proj.bias": Draw(-1.5, 0.1),
}
TEXT_ENCODER = {
    "*embed_tokens.weight": Draw(0.0, 1.0),
    "*pos_embed.weight": Draw(0.0, 0.5),
    "*self_attn.o_proj.weight": Draw(0.0, 0.5, fan_in=True),
    "*mlp.down_proj.weight": Draw(0.0, 0.7, fan_in=True),
    "*.q_norm.weight": SHARP,
    "*.k_norm.weight": SHARP,
}


def fill(module: nn.Module, generator: torch.Generator, rules: Mapping[str, Draw]) -> None:
    """Draw every parameter, in the order of names, so that a rule changes no other tensor."""
    directions = {}
    for name, parameter in sorted(module.named_parameters()):
        parameter.data.copy_(draw(name, parameter.shape, generator, rules))
        if name.endswith("weight_v"):
            directions[name.removesuffix("v") + "g"] = parameter.data
    for name, direction in directions.items():  # weight norm: the gain is the length of what it scales
        gain = module.get_parameter(name)
        length = direction.flatten(1).norm(dim=1).view(gain.shape)
        gain.data.copy_(length * draw("gain.weight", (len(gain),), generator, {}).view(gain.shape))


def draw(
    name: str, shape: tuple[int, ...] | torch.Size, generator: torch.Generator, rules: Mapping[str, Draw]
) -> torch.Tensor:
    """One float32 tensor by the first rule that fits its name."""
    default = MATRIX if len(shape) > 1 else GAIN if name.endswith("weight") else BIAS
    rule = next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), default)
    fan_in = math.prod(shape[1:]) if rule.fan_in else 1
    return torch.randn(tuple(shape), generator=generator) * (rule.spread / math.sqrt(fan_in)) + rule.mean


def statistics(channels: int, generator: torch.Generator, *, mean: float, std: tuple[float, float]) -> dict:
    """Random `latents_mean` and `latents_std`."""
    low, high = std
    means = torch.randn(channels, generator=generator) * mean
    stds = low + (high - low) * torch.rand(channels, generator=generator)
    return {"latents_mean": means.tolist(), "latents_std": stds.tolist()}


def denoiser(config: TransformerConfig, generator: torch.Generator) -> Denoiser:
    """A transformer in the release's dtypes: bfloat16 with float32 islands."""
    module = Denoiser(config)
    fill(module, generator, TRANSFORMER)
    for name, parameter in module.named_parameters():
        parameter.data = parameter.data.to(param_dtype(name, torch.bfloat16))
    return module


def video_vae(config: VideoVAEConfig, generator: torch.Generator) -> VideoVAE:
    """A video VAE whose posterior is narrow enough that latents still follow the image."""
    module = VideoVAE(config)
    fill(module, generator, VIDEO_VAE)
    module.get_parameter("quant_conv.bias").data[config.latent_channels :] -= 2.0
    return module


@torch.no_grad()
def audio_vae(config: AudioVAEConfig, generator: torch.Generator) -> AudioVAE:
    """An audio VAE whose sound is neither silent nor clipped."""
    module = AudioVAE(config).eval()
    fill(module, generator, AUDIO_VAE)
    last = module.get_parameter("decoder.conv_post.weight_g").data
    last *= 2.0**-12  # far from the clamp, to measure
    rms = module.decode(torch.randn(2, config.latent_channels, 24, generator=generator)).std().item()
    last *= 2.0 ** round(math.log2(RMS / rms))  # a power of two: rounding elsewhere cannot change it
    return module


def text_encoder(config: TextEncoderConfig, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """All tensors of the file, bfloat16: those that are used, and those that every loader drops."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in TextEncoder(config).state_dict().items()}
    last = f"model.language_model.layers.{LAYERS - 1}."
    for layer in range(LAYERS, config.num_layers):
        spare = {n.replace(last, f"model.language_model.layers.{layer}."): s for n, s in shapes.items() if last in n}
        shapes |= spare
    shapes["model.language_model.norm.weight"] = torch.Size([config.width])
    shapes["lm_head.weight"] = shapes["model.language_model.embed_tokens.weight"]
    return {name: draw(name, shapes[name], generator, TEXT_ENCODER).bfloat16() for name in sorted(shapes)}
