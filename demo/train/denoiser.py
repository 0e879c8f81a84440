"""The denoiser while it is trained: velocities of a whole batch, and their distance from the flow's.

x_t = t x0 + (1 - t) noise, v = x0 - noise, thus x0 = x_t + sigma v with sigma = 1 - t, as in the release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.train.batch_plan import Arrays, Bucket, Plan
from demo.train.batches import timestep_index
from demo.train.denoiser_sizes import transformer
from demo.train.kernels import Expansion, Segments, Varlen, one_by_one, training_ops
from demo.train.text import Seen, token_states
from h3serve.core.limits import DEFAULT_AUDIO_CONDITION_LEVEL, DEFAULT_VISUAL_CONDITION_LEVEL
from h3serve.models.kernels.elementwise import PLAIN, Ops, Rope
from h3serve.models.text_encoder.text_encoder import TextEncoder
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.modulation import sinusoid
from h3serve.models.transformer.transformer import StaticInputs, inverse_frequencies
from h3serve.models.transformer.transformer_config import MODALITIES, TransformerConfig
from h3serve.pipeline.conditions import mix
from h3serve.weights.demo.demo_sizes import SHIFTS

AS_RELEASED = 0.75  # share of samples whose noise levels follow the released shifts; others see other shifts
OTHER_VIDEO_SHIFT, OTHER_AUDIO_SHIFT = (1.0, 24.0), (1.0, 6.0)
LEAST_SIGMA = 1.0 - DEFAULT_VISUAL_CONDITION_LEVEL  # targets are never cleaner than conditions


class Trainee(nn.Module):
    """What is trained together."""

    def __init__(self, encoder: TextEncoder, denoiser: Denoiser) -> None:
        super().__init__()
        self.encoder, self.denoiser = encoder, denoiser


@dataclass(frozen=True)
class Kernels:
    """How this device computes a batch."""

    attention: Varlen = one_by_one
    ops: Ops = field(default_factory=training_ops)


@torch.no_grad()
def new_denoiser(*, seed: int = 0, config: TransformerConfig | None = None) -> Denoiser:
    """A denoiser in float32 whose blocks change nothing yet: modulation gives zeros only, and so do the heads."""
    generator = torch.Generator().manual_seed(seed)
    denoiser = Denoiser(config or TransformerConfig.from_dict(transformer()))
    for name, parameter in sorted(denoiser.named_parameters()):
        if parameter.dim() == 1:
            parameter.fill_(1.0 if "norm" in name else 0.0)
            if name.endswith("_proj.bias") and "transformer" in name:  # a row's kind is felt from the start
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        else:
            spread = 0.0 if name.endswith(("adaln_proj.linear.weight", "_out.weight")) else parameter.shape[1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    _bend(denoiser, generator)
    return denoiser


def _bend(denoiser: Denoiser, generator: torch.Generator) -> None:
    """Lets the timestep embedder tell early steps apart, which frequencies of 1 and less alone hardly do.

    Its hidden units bend at timesteps as the video schedule visits them, each at a steepness of its own. The weights
    are the shortest that do so: arithmetic in float32 has to bear them.
    """
    embedder = denoiser.modulation.time_embedder
    units, width = embedder.proj_in.weight.shape
    steepness = 10 ** torch.empty(units).uniform_(0.5, 1.7, generator=generator)
    bends = 1.0 - shifted(torch.rand(units, generator=generator), torch.tensor(SHIFTS.video))
    here, step = sinusoid(bends, width), 1e-3
    slope = (sinusoid(bends + step, width) - here) / step
    slope = slope + slope.norm(dim=1, keepdim=True) * torch.randn(units, width, generator=generator) * 0.02
    sign = torch.where(torch.rand(units, generator=generator) < 0.5, -1.0, 1.0)
    weight = (sign * steepness)[:, None] * slope / slope.square().sum(1, keepdim=True)
    embedder.proj_in.weight.copy_(weight)
    embedder.proj_in.bias.copy_(-(weight * here).sum(1))
    spread = torch.randn(embedder.proj_out.weight.shape, generator=generator) * math.sqrt(2 / units)
    embedder.proj_out.weight.copy_(spread * 4 / steepness)


def shifted(u: Tensor, shift: Tensor) -> Tensor:
    """Noise level at u in [0, 1], 1 being all noise."""
    return shift * u / (1 + (shift - 1) * u)


def draw_sigmas(batch: int, device: torch.device, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(video, audio) noise levels [B]: u even over [0, 1] and the same for both, in random order."""

    def uniform() -> Tensor:
        return torch.rand(batch, device=device, generator=generator)

    def other(low: float, high: float) -> Tensor:
        return low * (high / low) ** uniform()

    u = (torch.arange(batch, device=device) + uniform()) / batch
    u = u[torch.argsort(uniform())]
    released = uniform() < AS_RELEASED
    video = torch.where(released, SHIFTS.video, other(*OTHER_VIDEO_SHIFT))
    audio = torch.where(released, SHIFTS.audio, other(*OTHER_AUDIO_SHIFT))
    return shifted(u, video).clamp(min=LEAST_SIGMA), shifted(u, audio).clamp(min=LEAST_SIGMA)


@dataclass(frozen=True, eq=False)
class Noised:
    """What the network gets of a batch, and what it should answer: all float32 rows, conditions first."""

    video: Tensor
    audio: Tensor
    video_velocity: Tensor
    audio_velocity: Tensor
    timesteps: Tensor  # [2B + 2]
    seen: Seen | None


def add_noise(
    plan: Plan,
    arrays: Arrays,
    buckets: list[Bucket],
    sigmas: tuple[Tensor, Tensor],
    generator: torch.Generator | None = None,
) -> Noised:
    """Gathers the samples and brings their targets to the noise levels [B]; `arrays` is on the device."""
    device = arrays.ids.device
    picks = arrays.picks[: plan.samples].split([len(g.samples) for g in plan.groups])
    chosen = [(buckets[g.bucket], samples) for g, samples in zip(plan.groups, picks, strict=True)]

    def take(tensor: Tensor, samples: Tensor) -> Tensor:
        return tensor.index_select(0, samples).flatten(0, 1)

    def gather(name: str) -> Tensor:
        return torch.cat([take(getattr(bucket, name), samples) for bucket, samples in chosen]).float()

    def noise(rows: Tensor) -> Tensor:
        return torch.randn(rows.shape, device=device, generator=generator)

    def target(name: str, condition_rows: int, index: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        clean = gather(name)
        random = noise(clean)
        level = sigma[arrays.sample[index[condition_rows : condition_rows + len(clean)]]][:, None]
        return (1 - level) * clean + level * random, clean - random

    video, video_velocity = target("video", plan.condition_video_rows, arrays.video, sigmas[0])
    audio, audio_velocity = target("audio", plan.condition_audio_rows, arrays.audio, sigmas[1])
    conditions = gather("condition_video")
    conditions = mix(conditions, noise(conditions), DEFAULT_VISUAL_CONDITION_LEVEL)
    levels = torch.full((2,), DEFAULT_AUDIO_CONDITION_LEVEL, device=device)
    levels[:1].fill_(DEFAULT_VISUAL_CONDITION_LEVEL)
    seen = None
    if any(bucket.deep for bucket, _ in chosen):
        sets = range(max(len(bucket.deep) for bucket, _ in chosen))
        deep = tuple(torch.cat([take(b.deep[i], s) for b, s in chosen if b.deep]) for i in sets)
        features = torch.cat([take(b.features, s) for b, s in chosen if b.deep])
        seen = Seen(arrays.seen[: len(features)], features, deep)
    return Noised(
        torch.cat([conditions, video]),
        torch.cat([gather("condition_audio"), audio]),
        video_velocity,
        audio_velocity,
        torch.cat([1 - sigmas[0], 1 - sigmas[1], levels]),
        seen,
    )


def velocities(trainee: Trainee, plan: Plan, arrays: Arrays, noised: Noised, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """Velocities of all target rows, float32 [rows, 96] and [rows, 32]: `Denoiser` on many samples at once."""
    states = token_states(trainee.encoder, arrays.ids, arrays.places, noised.seen)
    states = states.flatten(0, 1).index_select(0, arrays.tokens)
    network, modulation_network = trainee.denoiser.transformer, trainee.denoiser.modulation
    text = _refine(
        trainee.denoiser, states, Segments(arrays.text_bounds, plan.text_lengths, plan.longest[1]), kernels.attention
    )
    rope = _rope(arrays.positions, network.config, network.compute_dtype)
    static = StaticInputs(
        text,
        rope,
        arrays.tags,
        arrays.text,
        arrays.video,
        arrays.audio,
        plan.condition_video_rows,
        plan.condition_audio_rows,
    )
    modulation = modulation_network(noised.timesteps)
    index = timestep_index(arrays.kinds, arrays.sample, plan.places)
    entries = len(noised.timesteps)
    expand = Expansion(MODALITIES * index + arrays.tags, MODALITIES * entries, text.dtype)
    segments = Segments(arrays.row_bounds, plan.row_lengths, plan.longest[0])

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernels.attention(q, k, v, segments)

    x = network.embed_rows(noised.video, noised.audio, static)
    for layer, block in enumerate(network.blocks):
        rows = expand(modulation.blocks[layer])
        x = block(x, rows, index=index, rope=rope, attention=attention, ops=kernels.ops)
    shift, scale = Expansion(index, entries, text.dtype)(modulation.final).unbind(1)
    final = network.final_layer
    h = final.norm(x) * (1 + scale) + shift
    starts = (0, 0) if plan.padded else (plan.condition_video_rows, plan.condition_audio_rows)
    video = h.index_select(0, arrays.video[starts[0] :]).float()
    audio = h.index_select(0, arrays.audio[starts[1] :]).float()
    return final.video_out(video), final.audio_out(audio)


def padded(noised: Noised, plan: Plan, arrays: Arrays) -> Noised:
    """For a padded batch: zeros where an index has no sample's row; conditions have a velocity too, of no weight."""

    def grown(values: Tensor, size: int, before: int = 0) -> Tensor:
        return F.pad(values, (0, 0, before, size - before - len(values)))

    video, audio = len(arrays.video), len(arrays.audio)
    seen = noised.seen
    if seen is not None:
        size = len(arrays.seen)
        seen = Seen(arrays.seen, grown(seen.features, size), tuple(grown(d, size) for d in seen.deep))
    return Noised(
        grown(noised.video, video),
        grown(noised.audio, audio),
        grown(noised.video_velocity, video, plan.condition_video_rows),
        grown(noised.audio_velocity, audio, plan.condition_audio_rows),
        noised.timesteps,
        seen,
    )


def losses(
    trainee: Trainee, plan: Plan, arrays: Arrays, noised: Noised, kernels: Kernels
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(video, audio) loss: each sample's mean square over its rows, averaged; and the same per row, [rows]."""
    video, audio = velocities(trainee, plan, arrays, noised, kernels)
    video_rows = (video - noised.video_velocity).square().mean(1)
    audio_rows = (audio - noised.audio_velocity).square().mean(1)
    video_loss, audio_loss = (video_rows * arrays.video_weights).sum(), (audio_rows * arrays.audio_weights).sum()
    return video_loss, audio_loss, video_rows.detach(), audio_rows.detach()


def _refine(denoiser: Denoiser, states: Tensor, segments: Segments, attention: Varlen) -> Tensor:
    """The token refiner on each sample's text rows by themselves."""
    network = denoiser.transformer
    x = network.condition_proj(states.to(network.compute_dtype))

    def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v.contiguous(), segments)

    for block in network.token_refiner.blocks:
        x = x + block.attn(block.norm1(x), rope=None, attention=within, ops=PLAIN)
        x = x + block.mlp(block.norm2(x), ops=PLAIN)
    refined: Tensor = network.token_refiner.final_norm(x)
    return refined


_frequencies: dict[torch.device, Tensor] = {}


def _rope(positions: Tensor, config: TransformerConfig, dtype: torch.dtype) -> Rope:
    """`rope_tables` of float32 positions, whose frequencies are sent to the device once."""
    if positions.device not in _frequencies:
        _frequencies[positions.device] = inverse_frequencies(config).to(positions.device)
    angles = (positions[:, :, None] * _frequencies[positions.device]).flatten(1)
    return Rope(angles.cos().to(dtype), angles.sin().to(dtype))
