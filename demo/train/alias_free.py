"""The audio decoder's activation in other ways, for training on a GPU: same numbers, far fewer bytes moved.

h3serve's `AliasFree` doubles the rate, bends, and halves it again, with depthwise (transposed) convolutions, for
which there are no quick kernels. Here even and odd samples of the doubled rate stay apart, so that each is a short
sum of shifted inputs; as one formula of slices a compiler makes a few kernels of it, forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from h3serve.models.audio_vae.audio_decoder import AliasFree, half_band_filter
from h3serve.models.audio_vae.audio_encoder import Snake

HALF = 6  # taps of each phase
TAPS: tuple[float, ...] = tuple(half_band_filter().flatten().tolist())

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]  # x [B,C,L], e^alpha and 1/e^beta [C,1] -> [B,C,L]


def by_slices(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    """Every tap is a slice times a number."""
    length = x.shape[-1]
    x = F.pad(x, (3, 3), mode="replicate")
    even = bend(_sum(x, [2 * TAPS[2 * j] for j in range(HALF)], 0, length), alpha, inverse_beta)
    odd = bend(_sum(x, [2 * TAPS[2 * j + 1] for j in range(HALF)], 1, length), alpha, inverse_beta)
    first, last = even[..., :1], odd[..., -1:]
    even = torch.cat([first, first, even, last, last, last], dim=-1)
    odd = torch.cat([first, first, first, odd, last, last], dim=-1)
    return _sum(even, [TAPS[2 * j + 1] for j in range(HALF)], 0, length) + _sum(
        odd, [TAPS[2 * j] for j in range(HALF)], 0, length
    )


def by_convolutions(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    """Every channel is an item of a batch; the two phases are channels of short convolutions."""
    batch, channels, length = x.shape
    taps = x.new_tensor(TAPS)
    rise = torch.stack([F.pad(2 * taps[0::2], (0, 1)), F.pad(2 * taps[1::2], (1, 0))])[:, None]
    fall = torch.stack([taps[1::2], taps[0::2]])[None]
    phases = F.conv1d(F.pad(x, (3, 3), mode="replicate").view(-1, 1, length + 6), rise)
    phases = bend(phases.view(batch, channels, 2, length), alpha[..., None], inverse_beta[..., None])
    first, last = phases[..., :1, :1], phases[..., 1:, -1:]
    even = torch.cat([first, first, phases[..., :1, :], last, last, last], dim=-1)
    odd = torch.cat([first, first, first, phases[..., 1:, :], last, last], dim=-1)
    return F.conv1d(torch.cat([even, odd], dim=2).flatten(0, 1), fall).view(batch, channels, length)


@dataclass(frozen=True)
class Way:
    """How activations are computed: the decoder's (None: as in h3serve), and the bend alone."""

    formula: Formula | None = None
    bend: Formula | None = None


def use(module: nn.Module, way: Way) -> None:
    """Every activation of `module` is computed in this way."""
    for part in module.modules():
        if isinstance(part, AliasFree):
            part.forward = _alias_free(part, way.formula) if way.formula else AliasFree.forward.__get__(part)
        if isinstance(part, Snake):
            part.forward = _snake(part, way.bend) if way.bend else Snake.forward.__get__(part)


def _alias_free(part: AliasFree, formula: Formula) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        alpha, beta = part.act.alpha.exp()[:, None], part.act.beta.exp()[:, None]
        return formula(x, alpha, (beta + 1e-9).reciprocal())

    return forward


def _snake(part: Snake, bend: Formula) -> Callable[[Tensor], Tensor]:
    return lambda x: bend(x, part.alpha[0], (part.alpha[0] + 1e-9).reciprocal())


def bend(x: Tensor, alpha: Tensor, inverse_beta: Tensor) -> Tensor:
    """x + sin²(alpha x)/beta."""
    return x + inverse_beta * torch.sin(alpha * x).square()


def _sum(x: Tensor, taps: list[float], start: int, length: int) -> Tensor:
    """Sum of taps[j] * x[n + start + j] over j."""
    total = taps[0] * x[..., start : start + length]
    for j, tap in enumerate(taps[1:], 1):
        total = total + tap * x[..., start + j : start + j + length]
    return total


PLAIN = Way()


def ways() -> dict[str, Way]:
    """Those that may be quick on a GPU, by name."""
    compiled = partial(torch.compile, dynamic=True)
    return {
        "convolutions": Way(by_convolutions),
        "slices": Way(by_slices),
        "compiled": Way(compiled(by_slices), compiled(bend)),
    }
