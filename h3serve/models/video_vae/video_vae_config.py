"""Sizes of the video VAE, from either spelling of its configuration (spec/vae_video.md 5.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from h3serve.core.errors import CheckpointError
from h3serve.models.key_map import Entry, split_heads_interleaved, swap_halves

# Switches of the original configuration that this code knows in one position only.
ONLY = {
    "causal_encoder": True,
    "causal_decoder": False,
    "padding_mode": "reflect",
    "padding_mode_t": None,
    "pixel_norm_type": "imagenet",
    "scaling_factor": 1.0,
    "shift_factor": 0.0,
    "use_3d_conv": True,
    "use_t_isolated_gn": True,
    "use_vit_decoder": True,
    "vae_encoder_tiling": 1,
    "vae_decoder_tiling": 1,
    "spatial_padding_mode": "reflect",  # the diffusers spelling
}
ONLY_DECODER = {
    "ffn_activation_fn": "silu",
    "ffn_use_gated": True,
    "norm_affine": True,
    "norm_type": "rms_norm",
    "qk_norm_affine": False,
    "qk_norm_type": "rms_norm",
}

# Keys that repeat what other keys say, and our name of it.
SAID_TWICE = {"latent_channels": "latent_channels", "vae_ratio": "space_ratio", "vae_ratio_t": "time_ratio"}
FACTORS = ("norm_eps", "decoder_eps", "rope_theta", "rope_ratio")  # all else is counted in whole numbers


@dataclass(frozen=True)
class VideoVAEConfig:
    """Sizes; the defaults are what the original files do not say."""

    channels: tuple[int, ...]  # of each encoder level
    space_down: tuple[int, ...]
    time_down: tuple[int, ...]
    decoder_layers: int
    heads: int
    head_dim: int
    latents_mean: tuple[float, ...]
    latents_std: tuple[float, ...]
    blocks_per_level: int = 2
    in_channels: int = 3
    out_channels: int = 3
    latent_channels: int = 24
    norm_groups: int = 32
    norm_eps: float = 1e-6
    registers: int = 4
    ffn_mult: int = 4
    rope_theta: float = 100.0
    rope_ratio: float = 0.75  # of head_dim that is rotated
    decoder_eps: float = 1e-5
    clip_length: int = 17  # pixel frames per encoder chunk
    token_drop: int = 3  # latents cut from the end of an encoded video
    tile_size: int = 256  # pixels
    tile_overlap: int = 64

    @property
    def space_ratio(self) -> int:
        """Pixels per latent along height and width."""
        return math.prod(self.space_down)

    @property
    def time_ratio(self) -> int:
        """Pixel frames per latent, the first of a chunk excepted."""
        return math.prod(self.time_down)

    @property
    def width(self) -> int:
        """Of the decoder's residual stream."""
        return self.heads * self.head_dim

    @property
    def rotated_dim(self) -> int:
        """Entries of a head that RoPE rotates: three axes of pairs."""
        return int(self.head_dim * self.rope_ratio)

    @property
    def chunk_latents(self) -> int:
        """Latents of one encoder chunk, and the stride of the decoder's windows."""
        return -(-self.clip_length // self.time_ratio)

    @property
    def window_latents(self) -> int:
        """Latents one decoder window consumes: its stride and what it shares with the next."""
        return self.chunk_latents + -self.token_drop % self.chunk_latents

    @property
    def lead_frames(self) -> int:
        """Raw frames to drop in front of each part: the first latent of a chunk is one frame."""
        return -self.clip_length % self.time_ratio

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> VideoVAEConfig:
        """Read diffusers' `vae/config.json`, or `video_vae/config.json` and `source/config.json`
        merged into one.

        CheckpointError for a missing key and for a switch in a position that is not implemented.
        """
        _refuse_other(raw, ONLY)
        read = _from_diffusers if "block_out_channels" in raw else _from_original
        try:
            config = cls(**read(raw))
        except KeyError as error:
            raise CheckpointError(f"video VAE configuration: {error.args[0]} is missing") from None
        config._check()
        for name, size in SAID_TWICE.items():
            if raw.get(name, ours := getattr(config, size)) != ours:
                raise CheckpointError(f"video VAE configuration: {name} is {raw[name]!r}, other sizes make it {ours}")
        return config

    def _check(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name))
        if not len(self.channels) == len(self.space_down) == len(self.time_down):
            raise CheckpointError("video VAE configuration: channels, space_down and time_down must have equal length")
        if not len(self.latents_mean) == len(self.latents_std) == self.latent_channels:
            raise CheckpointError(
                f"video VAE configuration: latents_mean and latents_std must have {self.latent_channels} values"
            )
        if self.rotated_dim % 6:
            raise CheckpointError(
                f"video VAE configuration: {self.rotated_dim} rotated entries per head are not three axes of pairs"
            )
        self._check_tiles()

    def _check_tiles(self) -> None:
        """Tiles begin and end on latents, go forward, and are wide enough for the encoder to mirror their edges."""
        unit, size, overlap = self.space_ratio, self.tile_size, self.tile_overlap
        if size % unit or size < 2 * unit:
            raise CheckpointError(
                f"video VAE configuration: vae_tile_size is {size}, it must be a multiple of {unit} from {2 * unit} on"
            )
        if overlap % unit or not 0 <= overlap < size:
            raise CheckpointError(
                f"video VAE configuration: vae_tile_overlap_min is {overlap}, "
                f"it must be a multiple of {unit} from 0 to {size - unit}, less than vae_tile_size"
            )


def _check_number(name: str, value: Any) -> None:
    """A size is whole, a factor positive, and what latents are divided by is neither 0 nor negative."""
    values = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
        raise CheckpointError(f"video VAE configuration: {name} is {value!r}, not a number")
    whole = name not in FACTORS and not name.startswith("latents_")
    if whole and not all(isinstance(v, int) for v in values):
        raise CheckpointError(f"video VAE configuration: {name} is {value!r}, not a whole number")
    least = {"latents_mean": -math.inf, "token_drop": 0, "registers": 0, "tile_overlap": 0}.get(name)
    if not all(v > 0 if least is None else v >= least for v in values):
        raise CheckpointError(f"video VAE configuration: {name} is {value!r}, it must be above 0")


def _refuse_other(raw: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    for name, value in only.items():
        if raw.get(name, value) != value:
            raise CheckpointError(f"video VAE configuration: {name} is {raw[name]!r}, only {value!r} is implemented")


def _float32(values: list[float]) -> tuple[float, ...]:
    """The two layouts print the same float32 numbers with different digits."""
    return tuple(torch.tensor(values, dtype=torch.float32).tolist())


def _from_diffusers(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "channels": tuple(raw["block_out_channels"]),
        "space_down": tuple(raw["spatial_downsample_factors"]),
        "time_down": tuple(raw["temporal_downsample_factors"]),
        "decoder_layers": raw["decoder_num_layers"],
        "heads": raw["decoder_num_attention_heads"],
        "head_dim": raw["decoder_attention_head_dim"],
        "latents_mean": _float32(raw["latents_mean"]),
        "latents_std": _float32(raw["latents_std"]),
        "blocks_per_level": raw["layers_per_block"],
        "in_channels": raw["in_channels"],
        "out_channels": raw["out_channels"],
        "latent_channels": raw["latent_channels"],
        "norm_groups": raw["norm_num_groups"],
        "norm_eps": raw["norm_eps"],
        "registers": raw["decoder_num_register_tokens"],
        "ffn_mult": raw["decoder_ffn_mult"],
        "rope_theta": raw["decoder_rope_theta"],
        "rope_ratio": raw["decoder_rope_dim_ratio"],
        "decoder_eps": raw["decoder_norm_eps"],
        "clip_length": raw["clip_length"],
        "token_drop": raw["token_drop"],
    }


def _from_original(raw: Mapping[str, Any]) -> dict[str, Any]:
    decoder = raw["vit_decoder_kwargs"]
    _refuse_other(decoder, ONLY_DECODER)
    # Never written by the release; a smaller model of the same layout may need other values.
    unsaid = {
        "norm_groups": raw.get("norm_num_groups", 32),
        "registers": decoder.get("num_register_tokens", 4),
        "ffn_mult": decoder.get("ffn_mult", 4),
    }
    return unsaid | {
        "channels": tuple(raw["ch"] * multiple for multiple in raw["ch_mult"]),
        "space_down": tuple(raw["space_down"]),
        "time_down": tuple(raw["time_down"]),
        "decoder_layers": decoder["num_layers"],
        "heads": decoder["heads"],
        "head_dim": decoder["dim_head"],
        "latents_mean": _float32(raw["latents_mean"]),
        "latents_std": _float32(raw["latents_std"]),
        "blocks_per_level": raw["num_res_blocks"],
        "in_channels": raw["in_channels"],
        "out_channels": raw["out_ch"],
        "latent_channels": raw["z_channels"],
        "rope_theta": decoder["rope_theta"],
        "rope_ratio": decoder["rope_dim_ratio"],
        "clip_length": raw["vae_clip_length"],
        "token_drop": raw["vae_token_drop"],
        "tile_size": raw["vae_tile_size"],
        "tile_overlap": raw["vae_tile_overlap_min"],
    }


# Ours (the original names) to diffusers', in this order.
DIFFUSERS_NAMES = (
    (".down.", ".down_blocks."),
    (".block.", ".resnets."),
    (".nin_shortcut.", ".conv_shortcut."),
    (".downsample.", ".downsamplers.0."),
    (".x_embedder.", ".proj_in."),
    (".to_out.", ".to_out.0."),
    (".ff.w1.", ".ff.net.0.proj."),
    (".ff.w2.", ".ff.net.2."),
)
DECODER_MATRICES = ("post_quant_conv.", ".attn.", ".ff.")  # what autocast rounds in the release


def original_entry(name: str, config: VideoVAEConfig) -> Entry:
    """The rows of QKV are grouped by head in the file."""
    if ".to_qkv." in name:
        return Entry(name, (name,), *split_heads_interleaved(config.heads, config.head_dim))
    return Entry(name, (name,))


def diffusers_entry(name: str) -> Entry:
    """QKV is split in the file, and the feed-forward's input is [up; gate]."""
    if ".to_qkv." in name:
        return Entry(name, tuple(name.replace("to_qkv", part) for part in ("to_q", "to_k", "to_v")))
    theirs = name
    for our_part, their_part in DIFFUSERS_NAMES:
        theirs = theirs.replace(our_part, their_part)
    if ".w1." in name:
        return Entry(name, (theirs,), swap_halves, swap_halves)
    return Entry(name, (theirs,))


def param_dtype(name: str, decoder_dtype: torch.dtype, encoder_dtype: torch.dtype = torch.float32) -> torch.dtype:
    """dtype of VideoVAE's parameter `name`.

    `decoder_dtype` is that of the decoder's matrices: float16 on CUDA is the release's recipe, and gives
    the numbers of float32 weights under float16 autocast. `encoder_dtype` is that of the convolutions'
    operands in the encoder's levels. All else is float32.
    """
    if any(part in name for part in DECODER_MATRICES):
        return decoder_dtype
    if name.startswith("encoder.down.") and name.endswith(".weight") and ".norm" not in name:
        return encoder_dtype
    return torch.float32
