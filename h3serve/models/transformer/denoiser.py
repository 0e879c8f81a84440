"""What a checkpoint's transformer folder holds: the transformer and its modulation network.

Names (spec/checkpoint.md 1.3) and dtypes (1.4) of every tensor, as data.
"""

from __future__ import annotations

import torch
from torch import nn

from h3serve.models.kernels.attention import Attention, sdpa
from h3serve.models.kernels.elementwise import PLAIN, Ops
from h3serve.models.key_map import Entry, KeyMap, Layout, split_heads_interleaved, swap_halves
from h3serve.models.transformer.modulation import ModulationNetwork
from h3serve.models.transformer.transformer import Transformer
from h3serve.models.transformer.transformer_config import TransformerConfig

# Precision islands: weights and arithmetic stay float32, whatever the compute dtype.
PREFIX = "modulation."  # of the names of everything that only turns timesteps into tables
FLOAT32_PREFIXES = (
    "transformer.video_patch_proj.",
    "transformer.audio_patch_proj.",
    "transformer.final_layer.video_out.",
    "transformer.final_layer.audio_out.",
    "modulation.time_embedder.",
)

# Layers that 8 bits are meant for (`float8_linear.use_float8`): nearly all of a step's arithmetic, no island.
FLOAT8_LINEARS = ("transformer.blocks.*.attn.*_proj", "transformer.blocks.*.mlp.fc*")


class Denoiser(nn.Module):
    """The two networks of one evaluation; `transformer` takes what `modulation` makes."""

    def __init__(self, config: TransformerConfig, *, attention: Attention = sdpa, ops: Ops = PLAIN) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config, attention=attention, ops=ops)
        self.modulation = ModulationNetwork(config)


def param_dtype(name: str, compute_dtype: torch.dtype) -> torch.dtype:
    """dtype of the Denoiser's parameter `name` when the model computes in `compute_dtype`."""
    return torch.float32 if name.startswith(FLOAT32_PREFIXES) else compute_dtype


def is_projection(name: str) -> bool:
    """Whether the denoiser's tensor `name` is of a block's AdaLN projection: never resident."""
    return name.startswith(f"{PREFIX}blocks.")


def to_compute_dtype(denoiser: Denoiser, compute_dtype: torch.dtype) -> Denoiser:
    """Casts every parameter in place to its dtype and returns the same module."""
    for name, parameter in denoiser.named_parameters():
        parameter.data = parameter.data.to(param_dtype(name, compute_dtype))
    return denoiser


# Our module -> diffusers' module, where one tensor of the file is one of ours.
_DIFFUSERS = {
    "transformer.video_patch_proj": "proj_in",
    "transformer.audio_patch_proj": "audio_proj_in",
    "transformer.condition_proj": "context_embedder",
    "transformer.token_refiner.final_norm": "token_refiner.final_norm",
    "transformer.final_layer.norm": "norm_out.norm",
    "transformer.final_layer.video_out": "proj_out",
    "transformer.final_layer.audio_out": "audio_proj_out",
    "modulation.time_embedder.proj_in": "time_embedder.linear_1",
    "modulation.time_embedder.proj_out": "time_embedder.linear_2",
    "modulation.final_layer.adaln_proj.linear": "norm_out.linear",
}
_DIFFUSERS_BLOCK = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.q_norm": "attn.norm_q",
    "attn.k_norm": "attn.norm_k",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc2": "ff.net.2",
}
_BIASED = ("_patch_proj", "condition_proj", "_out", "time_embedder.proj_in", "adaln_proj.linear")


def key_map(config: TransformerConfig, layout: Layout) -> KeyMap:
    """Every parameter of a Denoiser of this size and the file tensors it is made of."""
    return _original(config) if layout == "original" else _diffusers(config)


def _blocks(config: TransformerConfig) -> list[tuple[str, str]]:
    """(ours, diffusers') prefix of every block that holds attention and MLP."""
    main = [(f"transformer.blocks.{i}", f"transformer_blocks.{i}") for i in range(config.num_layers)]
    refiner = [
        (f"transformer.token_refiner.blocks.{i}", f"token_refiner.refiner_blocks.{i}")
        for i in range(config.num_refiner_layers)
    ]
    return main + refiner


def _one_to_one(config: TransformerConfig) -> dict[str, str]:
    """Our tensor -> diffusers' tensor, for all that neither layout rearranges."""
    modules = dict(_DIFFUSERS)
    for ours, theirs in _blocks(config):
        modules |= {f"{ours}.{a}": f"{theirs}.{b}" for a, b in _DIFFUSERS_BLOCK.items()}
    for i in range(config.num_layers):
        name = "adaln_proj.linear"
        modules[f"modulation.blocks.{i}.{name}"] = f"transformer_blocks.{i}.{name}"
    tensors = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in modules.items()}
    biased = {ours: theirs for ours, theirs in modules.items() if ours.endswith(_BIASED)}
    return tensors | {f"{ours}.bias": f"{theirs}.bias" for ours, theirs in biased.items()}


def _original(config: TransformerConfig) -> KeyMap:
    grouped = split_heads_interleaved(config.num_attention_heads, config.attention_head_dim)
    entries = [Entry(name, (_bare(name),)) for name in _one_to_one(config)]
    for block, _ in _blocks(config):
        qkv, fc1 = f"{block}.attn.qkv_proj.weight", f"{block}.mlp.fc1.weight"
        entries += [Entry(qkv, (_bare(qkv),), *grouped), Entry(fc1, (_bare(fc1),))]
    return KeyMap(tuple(entries), unused=("rope.inv_freq",))  # computed: rope.inverse_frequencies


def _diffusers(config: TransformerConfig) -> KeyMap:
    entries = [Entry(ours, (theirs,)) for ours, theirs in _one_to_one(config).items()]
    for block, other in _blocks(config):
        split = tuple(f"{other}.attn.to_{part}.weight" for part in "qkv")
        up_gate = (f"{other}.ff.net.0.proj.weight",)
        entries += [
            Entry(f"{block}.attn.qkv_proj.weight", split),
            Entry(f"{block}.mlp.fc1.weight", up_gate, swap_halves, swap_halves),
        ]
    return KeyMap(tuple(entries))


def _bare(name: str) -> str:
    """The original layout's name: ours without the child it lives in."""
    return name.split(".", 1)[1]
