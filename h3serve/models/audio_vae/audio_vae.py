"""The audio VAE: stereo audio at 32 kHz to rows of the transformer and back (spec/vae_audio.md).

The network is mono: the two channels are two items of a batch. Everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.backends import cuda, cudnn, mkldnn
from torch.nn.attention import SDPBackend, sdpa_kernel

from h3serve.core.errors import CheckpointError
from h3serve.models.audio_vae.audio_decoder import AudioDecoder
from h3serve.models.audio_vae.audio_encoder import AudioEncoder, LatentProjection
from h3serve.models.key_map import KeyMap, Layout, same

STEREO = 2
ORIGINAL_NAMES = {"sample_rate": "sampling_rate", "vae_latent_channels": "latent_channels"}
# What the release's files say and this code takes for granted.
FIXED = {"output_channel": STEREO, "audio_channel": 1, "attn_proj": True, "decoder_type": "bigvgan"}


@dataclass(frozen=True)
class AudioVAEConfig:
    """Sizes of the network, under the names of the diffusers layout; defaults are the release's."""

    latents_mean: tuple[float, ...]
    latents_std: tuple[float, ...]
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 4, 5, 5)
    latent_dim: int = 2048
    latent_channels: int = 32
    num_attention_heads: int = 8
    decoder_dim: int = 1024
    decoder_rates: tuple[int, ...] = (5, 5, 2, 2, 2, 2, 2)
    decoder_kernel_sizes: tuple[int, ...] = (9, 9, 4, 4, 4, 4, 4)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3
    sampling_rate: int = 32000

    @property
    def hop(self) -> int:
        """Samples per latent."""
        return math.prod(self.encoder_rates)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AudioVAEConfig:
        """From `config.json` of either layout; in the original layout the sizes are in `metadata.json`
        and `config.yaml`, whose top-level keys are looked for in the same dict. CheckpointError if it
        describes another network or contradicts itself. Source: spec/vae_audio.md 6.1, 6.8.
        """
        flat = dict(data)
        for part in (data.get("model_config", {}), data.get("metadata", {}).get("kwargs", {})):
            for name in set(part) & set(flat):
                if part[name] != flat[name]:
                    raise CheckpointError(f"audio VAE config: {name} is {flat[name]!r}, and elsewhere {part[name]!r}")
            flat |= part
        for name, value in FIXED.items():
            if flat.get(name, value) != value:
                raise CheckpointError(f"audio VAE config: {name} is {flat[name]!r}, not {value!r}")
        flat |= {ours: flat[theirs] for theirs, ours in ORIGINAL_NAMES.items() if theirs in flat}
        known = {f.name: _frozen(flat[f.name]) for f in fields(cls) if f.name in flat}
        try:
            config = cls(**known)
        except TypeError:
            raise CheckpointError("audio VAE config: latents_mean or latents_std is missing") from None
        config._check()
        return config

    def _check(self) -> None:
        channels = self.latent_channels
        pairs = list(zip(self.decoder_kernel_sizes, self.decoder_rates, strict=False))
        sizes = (self.encoder_dim, self.latent_dim, self.num_attention_heads, self.decoder_dim, self.sampling_rate)
        rules = {
            "every size is a whole number above 0": all(
                type(size) is int and size > 0 for size in (*sizes, channels, *self.encoder_rates, *self.decoder_rates)
            ),
            "latents_mean is finite, and latents_std above 0": all(map(math.isfinite, self.latents_mean))
            and all(0 < deviation < math.inf for deviation in self.latents_std),
            f"latents_mean and latents_std hold {channels} numbers": len(self.latents_mean)
            == len(self.latents_std)
            == channels,
            "encoder_rates and decoder_rates have one product": self.hop == math.prod(self.decoder_rates),
            "every decoder rate has a kernel, at least as large and as odd or even": len(self.decoder_rates)
            == len(self.decoder_kernel_sizes)
            and all(k >= r and (k - r) % 2 == 0 for k, r in pairs),
            "every AMP kernel has its dilations": len(self.resblock_kernel_sizes) == len(self.resblock_dilation_sizes),
            "latent_dim is a multiple of num_attention_heads times latent_channels": self.latent_dim
            % (self.num_attention_heads * channels)
            == 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise CheckpointError(f"audio VAE config: not true that {rule}")


class AudioVAE(nn.Module):
    """Encoder, posterior heads and decoder; module names are those of both checkpoint layouts."""

    def __init__(self, config: AudioVAEConfig) -> None:
        super().__init__()
        self.config = config
        width, channels = config.latent_dim, config.latent_channels
        self.encoder = AudioEncoder(config.encoder_dim, config.encoder_rates, width)
        self.pre_block = LatentProjection(width, channels, config.num_attention_heads)
        self.mean_proj = nn.Conv1d(channels, channels, 1)
        self.logs_proj = nn.Conv1d(channels, channels, 1)  # log std: in the file, used by training only
        self.dec_in_proj = nn.Conv1d(channels, width, 1)
        self.decoder = AudioDecoder(
            width,
            config.decoder_dim,
            rates=config.decoder_rates,
            kernels=config.decoder_kernel_sizes,
            amp_kernels=config.resblock_kernel_sizes,
            amp_dilations=config.resblock_dilation_sizes,
        )

    @torch.no_grad()
    def encode(self, audio: torch.Tensor) -> torch.Tensor:
        """Audio float32 [2, n] at 32 kHz -> normalized posterior mean, rows float32 [2·T, 32], all of the
        left channel first; T = n/800 rounded up, zeros fill the end. spec/vae_audio.md 6.2, 6.3, 6.6.
        """
        assert audio.ndim == 2 and audio.shape[0] == STEREO and audio.dtype == torch.float32
        with true_float32(use_cudnn=False):
            padded = F.pad(audio, (0, -audio.shape[1] % self.config.hop))
            trunk = self.encoder(padded[:, None]).transpose(1, 2)  # [2, T, width]
            mean = self.mean_proj(self.pre_block(trunk).transpose(1, 2))
            latents = (mean - self._stat("latents_mean")) / self._stat("latents_std")
        return latents.transpose(1, 2).flatten(0, 1)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Normalized latents float32 [2, 32, T], or rows [2·T, 32] -> audio float32 [2, 800·T] at 32 kHz
        in [-1, 1]. Source: spec/vae_audio.md 6.4, 6.5.
        """
        if latents.ndim == 2:
            latents = latents.unflatten(0, (STEREO, -1)).transpose(1, 2)
        assert latents.shape[:2] == (STEREO, self.config.latent_channels)
        assert latents.dtype == torch.float32
        with true_float32():
            latents = latents * self._stat("latents_std") + self._stat("latents_mean")
            return self.decoder(self.dec_in_proj(latents))[:, 0]

    def _stat(self, name: str) -> torch.Tensor:
        """[32, 1] float32, made on the spot: the file does not hold it, so a load cannot fill it."""
        return self.mean_proj.weight.new_tensor(getattr(self.config, name))[:, None]


def key_map(config: AudioVAEConfig, layout: Layout) -> KeyMap:
    """Both layouts store every tensor as we hold it, filters included (spec/checkpoint.md 1.8)."""
    del layout
    with torch.device("meta"):
        return KeyMap(same(*AudioVAE(config).state_dict()))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


@contextmanager
def true_float32(*, use_cudnn: bool = True) -> Iterator[None]:
    """No TF32, no autocast, deterministic convolutions, plain attention; all settings are put back.

    PyTorch lets cuDNN convolutions use TF32 unless told otherwise. Source: spec/vae_audio.md 6.7.
    """
    wanted = [
        (cuda.matmul, "fp32_precision", "ieee"),
        (cudnn.conv, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        (mkldnn.matmul, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        (mkldnn.conv, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        (cudnn, "deterministic", True),
        (cudnn, "benchmark", False),
        (cudnn, "enabled", use_cudnn and cudnn.enabled),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.autocast("cuda", enabled=False),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
