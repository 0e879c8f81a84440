"""One evaluation of the transformer: how long, how far from the floor, from a peer and from float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from bench.report import Figure, Report, machine
from bench.speed.ceilings import Ceilings, measure_ceilings
from bench.speed.step_inputs import (
    StepInputs,
    Velocity,
    evaluation,
    float32,
    float32_velocity,
    quantized_twin,
    random_inputs,
)
from bench.speed.timing import alternate
from h3serve.core.estimate_work import ModelSize, step_flops
from h3serve.core.limits import Quality
from h3serve.core.plan import Plan
from h3serve.core.request import parse_request
from h3serve.models.kernels import attention
from h3serve.models.kernels.elementwise import Rope
from h3serve.models.quality import use_quality
from h3serve.models.transformer.denoiser import Denoiser
from h3serve.models.transformer.transformer import Transformer
from h3serve.models.transformer.transformer_config import MODALITIES
from h3serve.pipeline.packing import pack

# A peer's transformer: takes our denoiser, whose weights it shares, and gives a call on the same inputs.
Peer = Callable[[Denoiser], Callable[[StepInputs], Velocity]]


def bench_step(
    denoiser: Denoiser,
    tiers: Sequence[str],
    *,
    target: Mapping[str, Any],
    text_tokens: int,
    rounds: int,
    peer: Peer | None = None,
    ceiling_seconds: float = 3.0,
    warm_up: bool = True,
) -> Report:
    """A/B/A/B of the tiers and the peer on one request's rows; ceilings first, in the same run.

    A clip of 15 s takes half a minute for one evaluation: once everything has run at another length, `warm_up`
    may be left out.
    """
    device = next(denoiser.parameters()).device
    size = model_size(denoiser)
    inputs = request_inputs(denoiser, target, text_tokens)
    kernels = attention.available(device, denoiser.transformer.compute_dtype)
    eight = attention.eight_bits(device, denoiser.transformer.compute_dtype)
    ceilings = measure_ceilings(inputs.rows, size, kernels, device=device, seconds=ceiling_seconds, kernel8=eight)
    calls = tier_calls(denoiser, inputs, tiers)
    if peer is not None:
        theirs = peer(denoiser)
        calls["peer"] = lambda: theirs(inputs)
    timings = alternate(calls, rounds=rounds, device=device, warm_up=warm_up)
    peer_seconds = timings["peer"].median if peer else None
    report = Report(f"Step, {inputs.rows} rows", {**machine(device), **facts(ceilings, target, text_tokens, rounds)})
    for name, timing in timings.items():
        report.figures.append(
            Figure(
                name,
                timing.median,
                flops=step_flops(inputs.rows, size),
                floor_seconds=ceilings.floor(size, linear8=_is_float8(name), attention8=name.startswith("fast")),
                peer_seconds=peer_seconds,
                peak_bytes=timing.peak_bytes,
                spread=timing.spread,
            )
        )
    return report


def bench_step_error(
    denoiser: Denoiser,
    tiers: Sequence[str],
    *,
    target: Mapping[str, Any],
    text_tokens: int,
    peer: Peer | None = None,
) -> Report:
    """Distance of a whole evaluation from the same one in float32; random depth amplifies rounding."""
    inputs = request_inputs(denoiser, target, text_tokens)
    calls = tier_calls(denoiser, inputs, tiers)
    if peer is not None:
        theirs = peer(denoiser)
        calls["peer"] = lambda: theirs(inputs)
    exact = flat(float32_velocity(denoiser, inputs))
    device = inputs.tags.device
    layers = len(denoiser.transformer.blocks)
    report = Report(f"Error after {layers} blocks, {inputs.rows} rows", machine(device))
    results = {name: flat(call()) for name, call in calls.items()}
    for name, result in results.items():
        report.figures.append(Figure(name, error=distance(result, exact)))
        if peer is not None and name != "peer":
            report.facts[f"{name} from the peer"] = f"{distance(result, results['peer']):.2e}"
    return report


def bench_block_error(
    denoiser: Denoiser, tiers: Sequence[str], *, target: Mapping[str, Any], text_tokens: int
) -> Report:
    """One block at full length against the same block in float32: of its result, and of what it adds."""
    inputs = request_inputs(denoiser, target, text_tokens)
    device, layer = inputs.tags.device, len(denoiser.transformer.blocks) // 2
    table = denoiser.modulation.project_layer(layer, denoiser.modulation.embed(inputs.timesteps))
    static = inputs.prepare(denoiser)
    index = MODALITIES * inputs.timestep_index + static.tags
    x = torch.randn(inputs.rows, denoiser.config.hidden_size, device=device).to(table.dtype)

    def run(
        block: torch.nn.Module, x: torch.Tensor, table: torch.Tensor, rope: Rope, ways: Transformer
    ) -> torch.Tensor:
        result: torch.Tensor = block(x, table, index=index, rope=rope, attention=ways.attention, ops=ways.ops)
        return result

    use_quality(denoiser.transformer, "exact", device)
    rope32 = Rope(static.rope.cos.float(), static.rope.sin.float())
    block = denoiser.transformer.blocks[layer]
    exact = run(float32(block), x.float(), table.float(), rope32, denoiser.transformer)
    report = Report(f"Error of one block, {inputs.rows} rows", machine(device))
    twin = _twin(denoiser, tiers)
    for tier in tiers:
        ways = (twin if _is_float8(tier) else denoiser).transformer
        quality, plain = _parsed(tier)
        use_quality(ways, quality, device, extras=not plain)
        call = partial(run, ways.blocks[layer], x, table, static.rope, ways)
        result, seconds = call().float(), alternate({tier: call}, rounds=3, device=device)[tier].median
        report.figures.append(Figure(tier, seconds, error=distance(result, exact)))
        report.figures.append(
            Figure(f"{tier}, of what it adds", seconds, error=distance(result - x.float(), exact - x.float()))
        )
    return report


def request_inputs(denoiser: Denoiser, target: Mapping[str, Any], text_tokens: int) -> StepInputs:
    """Random inputs of text to video with this target."""
    request = parse_request({"task": "t2va", "prompt": "measured", "target": dict(target)})
    plan = Plan.resolve(request, prompt_tokens=text_tokens)
    layout = pack(np.ones(text_tokens, np.int64), (), plan.target)
    return random_inputs(layout, denoiser, device=next(denoiser.parameters()).device)


def tier_calls(denoiser: Denoiser, inputs: StepInputs, tiers: Sequence[str]) -> dict[str, Callable[[], Velocity]]:
    """A call per tier: `TIER-plain` is one without optional packages, `TIER-fp8` one on 8-bit layers, as `fast` is.

    8-bit layers have a denoiser of their own.
    """
    calls: dict[str, Callable[[], Velocity]] = {}
    twin = _twin(denoiser, tiers)
    for name in tiers:
        quality, plain = _parsed(name)
        calls[name] = evaluation(twin if _is_float8(name) else denoiser, inputs, quality, extras=not plain)
    return calls


def _twin(denoiser: Denoiser, tiers: Sequence[str]) -> Denoiser:
    return quantized_twin(denoiser) if any(map(_is_float8, tiers)) else denoiser


def _is_float8(tier: str) -> bool:
    return tier.startswith("fast") or tier.endswith("-fp8")


def _parsed(name: str) -> tuple[Quality, bool]:
    tier, _, variant = name.partition("-")
    return cast(Quality, tier), variant == "plain"


def model_size(denoiser: Denoiser) -> ModelSize:
    """What decides the cost of a step."""
    config = denoiser.config
    return ModelSize(hidden=config.hidden_size, inner=config.inner_dim, ffn=config.ffn_dim, layers=config.num_layers)


def facts(ceilings: Ceilings, target: Mapping[str, Any], text_tokens: int, rounds: int) -> dict[str, Any]:
    """What the figures were measured with."""
    rates = {f"attention {name}": rate for name, rate in ceilings.attention.items()}
    rates |= {"linear layers": ceilings.linear}
    if ceilings.linear8:
        rates["linear layers, 8 bits"] = ceilings.linear8
    if ceilings.attention8:
        rates["attention, 8 bits"] = ceilings.attention8
    shown = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in rates.items())
    return {
        "target": dict(target),
        "text tokens": text_tokens,
        "rounds": rounds,
        "ceilings, TFLOP/s sustained": shown,
        "copy, TB/s": f"{ceilings.copy / 1e12:.2f}",
    }


def flat(velocity: Velocity) -> torch.Tensor:
    """Both velocities as one float32 vector."""
    return torch.cat([part.float().flatten() for part in velocity])


def distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    """||value - exact|| / ||exact||."""
    return float((value - exact).norm() / exact.norm())
