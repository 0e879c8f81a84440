"""What adapters cost: an evaluation with none, one and three, a swap between two jobs, memory over many swaps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.report import Figure, Report, machine
from bench.speed.step_inputs import Velocity, evaluation, quantized_twin
from bench.speed.timing import alternate
from bench.speed.transformer_step import flat, request_inputs
from h3serve.core.limits import Quality
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.runtime.adapters.adapter_shelf import ReadyAdapter
from h3serve.runtime.adapters.adapter_terms import LowRankTerm
from h3serve.runtime.adapters.live_adapters import Chosen, ChosenAdapter, LiveAdapters

RANK, SWAPS = 64, 200
LAYERS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")  # of 52 blocks: 208


def bench_adapters(
    denoiser: Denoiser, tiers: tuple[Quality, ...], *, target: Mapping[str, Any], text_tokens: int, rounds: int
) -> Report:
    """A/B/A/B of each tier without adapters, with one and with three of rank 64 on every layer of the blocks."""
    device = next(denoiser.parameters()).device
    inputs = request_inputs(denoiser, target, text_tokens)
    held = {"fast": quantized_twin(denoiser), "lossless": denoiser}
    adapters = [random_adapter(denoiser, seed) for seed in range(3)]
    calls: dict[str, Callable[[], Velocity]] = {}
    lives: dict[str, LiveAdapters] = {}
    for tier in tiers:
        ours = held[tier]
        lives[tier] = live = LiveAdapters(ours, None, device=device)  # type: ignore[arg-type]
        evaluate = evaluation(ours, inputs, tier)
        for count in (0, 1, 3):
            calls[f"{tier}, {count} adapters"] = _with(live, tuple(adapters[:count]), evaluate)
    bits = {tier: flat(calls[f"{tier}, 0 adapters"]()) for tier in tiers}
    for tier in tiers:  # a hook that is passed by costs nothing
        assert not torch.equal(bits[tier], flat(calls[f"{tier}, 1 adapters"]()))
    timings = alternate(calls, rounds=rounds, device=device)
    facts: dict[str, Any] = {**machine(device), "rank": RANK, "layers": len(adapters[0].ready.terms), "rounds": rounds}
    for tier in tiers:
        without = timings[f"{tier}, 0 adapters"].median
        for count in (1, 3):
            facts[f"{tier}, {count}"] = f"{timings[f'{tier}, {count} adapters'].median / without - 1:+.2%}"
        facts[f"{tier}, bits after"] = bool(torch.equal(bits[tier], flat(calls[f"{tier}, 0 adapters"]())))
    facts |= _swaps(lives[tiers[-1]], adapters, device)
    report = Report(f"Adapters of rank {RANK}, {inputs.rows} rows", facts)
    for name, timing in timings.items():
        report.figures.append(Figure(name, timing.median, peak_bytes=timing.peak_bytes, spread=timing.spread))
    return report


def random_adapter(denoiser: Denoiser, seed: int) -> ChosenAdapter:
    """Low ranks as a file would have them, in host memory."""
    generator, terms = torch.Generator().manual_seed(seed), {}
    for path, layer in denoiser.named_modules():
        if path.endswith(LAYERS) and path.startswith("transformer."):
            assert isinstance(layer, nn.Linear)
            a = torch.randn(RANK, layer.in_features, generator=generator).bfloat16() * 0.02
            b = torch.randn(layer.out_features, RANK, generator=generator).bfloat16() * 0.002
            terms[path] = (LowRankTerm(0, layer.out_features, 1.0, a, b),)
    ready = ReadyAdapter(Path(f"{seed}"), f"{seed}", terms, {})
    return ChosenAdapter(f"{seed}", 1.0, ready)


def _with(live: LiveAdapters, chosen: Chosen, evaluate: Callable[[], Velocity]) -> Callable[[], Velocity]:
    """An evaluation under `chosen`, whose factors are on the device: hooks alone are exchanged."""
    made = {path: live._layer(path, terms) for path, terms in live._terms(chosen).items()}

    def call() -> Velocity:
        hooks = [live._denoiser.get_submodule(path).register_forward_hook(layer) for path, layer in made.items()]
        try:
            return evaluate()
        finally:
            for hook in hooks:
                hook.remove()

    return call


def _swaps(live: LiveAdapters, adapters: list[ChosenAdapter], device: torch.device) -> dict[str, Any]:
    """Seconds from host memory to the device, and what many of them leave behind."""
    seconds, before = [], (0, 0)
    for number in range(SWAPS):
        began = time.perf_counter()
        live.use((adapters[number % 2],))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        if number == 1:
            before = _memory(device)
    grown = [now - then for now, then in zip(_memory(device), before, strict=True)]
    held = live.num_bytes((adapters[0],))
    live.use(())
    return {
        "one adapter, GiB": f"{held / 2**30:.2f}",
        f"swap, s, median and most of {SWAPS}": f"{median(seconds):.3f}, {max(seconds):.3f}",
        "grown by swaps, MiB of device and host": f"{grown[0] / 2**20:.1f}, {grown[1] / 2**20:.1f}",
    }


def _memory(device: torch.device) -> tuple[int, int]:
    on_device = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    return on_device, int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
