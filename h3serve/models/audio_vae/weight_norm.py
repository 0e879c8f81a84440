"""Weight-normalized 1-D convolutions, stored as the audio VAE's files store them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class _WeightNormed(nn.Module):
    """weight = g·v/‖v‖, the norm taken over all but axis 0 (spec/vae_audio.md 6.1).

    The weight is made anew in each call: one pass over it, next to a convolution that reads it thousands
    of times, and so the parameters stay the file's and nothing has to be called after loading.
    """

    def __init__(self, shape: tuple[int, int, int], bias: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(shape[0], 1, 1))
        self.weight_v = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.zeros(bias)) if bias else None

    @property
    def weight(self) -> torch.Tensor:
        return torch._weight_norm(self.weight_v, self.weight_g, 0)


class Conv1d(_WeightNormed):
    """[B, inputs, L] -> [B, outputs, L'] with as much zero padding on both sides as is asked for."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        padding: int = 0,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__((outputs, inputs, kernel), outputs if bias else 0)
        self.padding, self.stride, self.dilation = padding, stride, dilation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class ConvTranspose1d(_WeightNormed):
    """[B, inputs, L] -> [B, outputs, L·rate], for kernels as odd or even as their rate.

    Axis 0 of a transposed convolution's weight is the *input* channel, and g follows it.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__((inputs, outputs, kernel), outputs)
        self.rate, self.padding = rate, (kernel - rate) // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose1d(x, self.weight, self.bias, self.rate, self.padding)
