"""Seconds of an evaluation at several lengths, and the curve of the cost formula through them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report import Figure, Report, machine
from bench.speed.timing import alternate
from bench.speed.transformer_step import model_size, request_inputs, tier_calls
from h3serve.core.errors import RequestError
from h3serve.core.estimate_seconds import fit
from h3serve.core.estimate_work import step_flops
from h3serve.models.transformer.denoiser import Denoiser


def bench_growth(
    denoiser: Denoiser, tier: str, *, points: Sequence[tuple[int, float]], text_tokens: int, rounds: int
) -> Report:
    """`points` are (short edge, seconds), the shortest first: it warms up, and is then measured like the others.

    A figure's floor is what the curve says, so that its distance from the curve is seen.
    """
    device, model = next(denoiser.parameters()).device, model_size(denoiser)
    measured, warm_up = [], True
    for edge, length in points:
        inputs = request_inputs(denoiser, {"short_edge": edge, "duration_seconds": length}, text_tokens)
        calls = tier_calls(denoiser, inputs, [tier])
        timing = alternate(calls, rounds=rounds, device=device, warm_up=warm_up)[tier]
        measured.append((inputs.rows, timing))
        warm_up = False
    curve = fit([(rows, timing.median) for rows, timing in measured], model)
    distance = curve.distance([(rows, timing.median) for rows, timing in measured], model)
    facts = {
        **machine(device),
        "rounds": rounds,
        "curve": f"linear layers at {curve.linear / 1e12:.0f} TFLOP/s, attention at {curve.attention / 1e12:.0f}",
        "farthest point from the curve": f"{distance:.1%}",
        "the floor": "the curve",
    }
    report = Report(f"Growth, {tier}", facts)
    for rows, timing in measured:
        floor, flops = curve.seconds(rows, model), step_flops(rows, model)
        report.figures.append(Figure(f"{rows} rows", timing.median, flops, floor, spread=timing.spread))
    return report


def read_points(text: str) -> list[tuple[int, float]]:
    """`EDGE:SECONDS,EDGE:SECONDS`; RequestError if it is something else."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        points = [(int(edge), float(seconds)) for edge, seconds in pairs]
    except ValueError:
        raise RequestError("points", text, "EDGE:SECONDS pairs, as 512:4,768:4") from None
    if len(points) < 2:
        raise RequestError("points", text, "two or more: a curve has two terms")
    return points
