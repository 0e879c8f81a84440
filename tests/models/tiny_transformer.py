"""A tiny transformer with random weights and a tiny packed request, for tests."""

from dataclasses import dataclass, replace

import torch

from h3serve.models.key_map import KeyMap
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer import StaticInputs, Transformer
from h3serve.models.transformer.transformer_config import TransformerConfig

TINY = TransformerConfig(
    hidden_size=64,
    num_layers=3,
    num_attention_heads=3,
    ffn_dim=160,
    text_dim=48,
    time_embed_hidden_dim=64,
    time_embed_dim=32,
)


def randomize(module: torch.nn.Module, seed: int) -> None:
    """Fresh weights that leave no part without effect: gains around 1, biases and tables not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(module.named_parameters()):
        drawn = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            drawn = 1 + 0.2 * drawn if "norm" in name else 0.3 * drawn
        else:
            drawn = drawn / value.shape[1] ** 0.5
        value.data = drawn


def tiny_denoiser(seed: int = 0, config: TransformerConfig = TINY) -> Denoiser:
    denoiser = Denoiser(config).eval().requires_grad_(False)
    randomize(denoiser, seed)
    return denoiser


def load(module: torch.nn.Module, keys: KeyMap, tensors: dict[str, torch.Tensor]) -> None:
    """Fills `module` from a file's tensors; every tensor of the file has to be used."""
    tensors, own = dict(tensors), {}
    for entry in keys.entries:
        value = torch.cat([tensors.pop(source) for source in entry.sources])
        own[entry.target] = entry.reorder(value) if entry.reorder else value
    assert not tensors
    module.load_state_dict(own)


@dataclass(frozen=True)
class Packed:
    """One request: [text | keyframe | reference sound | sound | video], three timesteps."""

    text_states: torch.Tensor
    positions: torch.Tensor
    tags: torch.Tensor
    text_index: torch.Tensor
    video_index: torch.Tensor
    audio_index: torch.Tensor
    condition_video_rows: int
    condition_audio_rows: int
    video_rows: torch.Tensor
    audio_rows: torch.Tensor
    timesteps: torch.Tensor
    timestep_index: torch.Tensor

    def to(self, device: str) -> "Packed":
        tensors = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, torch.Tensor)}
        return replace(self, **tensors)

    def prepare(self, transformer: Transformer, **changes: object) -> StaticInputs:
        new = replace(self, **changes) if changes else self
        return transformer.prepare(
            new.text_states,
            new.positions,
            tags=new.tags,
            text_index=new.text_index,
            video_index=new.video_index,
            audio_index=new.audio_index,
            condition_video_rows=new.condition_video_rows,
            condition_audio_rows=new.condition_audio_rows,
        )

    def run(self, denoiser: Denoiser, **changes: object) -> tuple[torch.Tensor, torch.Tensor]:
        new = replace(self, **changes) if changes else self
        return denoiser.transformer(
            new.video_rows,
            new.audio_rows,
            static=new.prepare(denoiser.transformer),
            modulation=denoiser.modulation(new.timesteps),
            timestep_index=new.timestep_index,
        )


def tiny_request(seed: int = 0, config: TransformerConfig = TINY) -> Packed:
    generator = torch.Generator().manual_seed(seed)
    sizes = (7, 4, 3, 10, 24)
    text, keyframe, reference, sound, video = torch.arange(sum(sizes)).split(sizes)
    tags = torch.cat([torch.full((n,), tag) for n, tag in zip(sizes, (1, 0, 2, 2, 0), strict=True)])
    tags[2:4] = 0  # vision tokens among the text
    positions = 40 * torch.rand(sum(sizes), 3, generator=generator, dtype=torch.float64) - 3
    timestep_index = torch.cat([torch.full((n,), t) for n, t in zip(sizes, (0, 2, 2, 1, 0), strict=True)])
    return Packed(
        text_states=torch.randn(len(text), config.text_dim, generator=generator),
        positions=positions,
        tags=tags,
        text_index=text,
        video_index=torch.cat([keyframe, video]),
        audio_index=torch.cat([reference, sound]),
        condition_video_rows=len(keyframe),
        condition_audio_rows=len(reference),
        video_rows=torch.randn(28, config.video_row_dim, generator=generator),
        audio_rows=torch.randn(13, config.audio_in_channels, generator=generator),
        timesteps=torch.tensor([0.125, 0.37, 0.999]),
        timestep_index=timestep_index,
    )
