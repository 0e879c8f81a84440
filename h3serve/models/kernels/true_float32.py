"""True float32 for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import cuda, cudnn, mkldnn
from torch.nn.attention import SDPBackend, sdpa_kernel


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
