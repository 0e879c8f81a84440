"""The text encoder: seconds per length, in bfloat16 and with 8-bit layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch

from bench.report import Figure, Report, machine
from bench.speed.timing import alternate
from h3serve.models.kernels.float8_linear import use_float8
from h3serve.models.text_encoder.text_encoder import FLOAT8_LINEARS, EncoderInput, TextEncoder


def bench_text(encoder: TextEncoder, *, lengths: Sequence[int], rounds: int) -> Report:
    """Both ways at each length in tokens, and how far 8 bits are from bfloat16."""
    embeddings = encoder.model.language_model.embed_tokens.weight
    device, dtype = embeddings.device, embeddings.dtype
    shared = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    twin = copy.deepcopy(encoder, shared)
    use_float8(twin, FLOAT8_LINEARS, dtype)
    report = Report("Text encoder", {**machine(device), "error": "of 8 bits, from bfloat16"})
    for length in lengths:
        tokens = torch.randint(min(10000, len(embeddings) // 2), (length,))  # far from those that stand for pictures
        inputs = EncoderInput(tokens, torch.zeros_like(tokens))
        calls = {"bfloat16": partial(encoder.encode, inputs), "8 bits": partial(twin.encode, inputs)}
        plain, eight = (call().float() for call in calls.values())
        timings = alternate(calls, rounds=rounds, device=device)
        error = float((eight - plain).norm() / plain.norm())
        for name, timing in timings.items():
            report.figures.append(
                Figure(
                    f"{length} tokens, {name}",
                    timing.median,
                    error=error if name == "8 bits" else None,
                    peak_bytes=timing.peak_bytes,
                    spread=timing.spread,
                )
            )
    return report
