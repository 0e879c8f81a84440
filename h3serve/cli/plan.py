"""`h3serve plan`: what a request will be, before anything is computed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3serve.cli import flags
from h3serve.cli.body import build_request, read_body
from h3serve.cli.console import say
from h3serve.core.settings import is_float8

if TYPE_CHECKING:
    from h3serve.core.plan import Plan
    from h3serve.runtime.residency import Choice


def plan(
    request_file: flags.RequestFile = None,
    model: Annotated[
        str | None, typer.Option(help="Take sizes from this checkpoint; the released ones if left out.")
    ] = None,
    task: flags.Task = None,
    prompt: flags.Prompt = None,
    first_frame: flags.FirstFrame = None,
    last_frame: flags.LastFrame = None,
    reference: flags.Reference = None,
    short_edge: flags.ShortEdge = None,
    aspect_ratio: flags.AspectRatio = None,
    duration: flags.Duration = None,
    steps: flags.Steps = None,
    seed: flags.Seed = None,
    cache: flags.Cache = None,
    quantize: flags.Quantize = "auto",
    residency: flags.Residency = "auto",
    device_gib: Annotated[float | None, typer.Option(help="Device memory to plan for; this GPU's if left out.")] = None,
    host_gib: Annotated[float | None, typer.Option(help="Host memory to plan for; this machine's if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show canvas, frames, rows, work and memory of a request."""
    fields = flags.request_fields(task, prompt, short_edge, aspect_ratio, duration, steps, seed)
    keyframes = {0: first_frame, -1: last_frame}
    request = build_request(read_body(request_file), fields, keyframes=keyframes, references=reference or [])
    from h3serve.pipeline.ingest import Ingest

    float8 = is_float8("lossless", quantize)
    ingest = Ingest()
    if model is not None:
        from h3serve.core.tasks import PARTITION_OF
        from h3serve.weights.locate import locate
        from h3serve.weights.opened import open_checkpoint
        from h3serve.weights.size_rules import read_size_rules

        partition = PARTITION_OF[request.task]
        folder = locate(model, partition, cache=cache)
        open_checkpoint(folder, partition)  # what is planned is refused where it would not be generated
        ingest = Ingest(read_size_rules(folder.partition(partition).folder))
    resolved = ingest.plan(request)
    shown = resolved.describe()
    choice = None if model is not None else _placement(resolved, residency, float8, device_gib, host_gib)
    if choice is not None:
        shown["placement"] = choice.describe()
    if as_json:
        say(json.dumps(shown, indent=2))
        return
    for line in [*_lines(shown), *(choice.lines() if choice else [])]:
        say(line)


def _placement(
    resolved: Plan, residency: str, float8: bool, device_gib: float | None, host_gib: float | None
) -> Choice | None:
    """Where the released weights would live, on the machine that was described or on this one's GPU."""
    import torch

    from h3serve.runtime.machine import Machine, host_memory, measure
    from h3serve.runtime.sizes import choose_released

    if device_gib is None and not torch.cuda.is_available():
        return None
    total, free = (int(host_gib * 2**30),) * 2 if host_gib is not None else host_memory()
    if device_gib is not None:
        machine = Machine(int(device_gib * 2**30), int(device_gib * 2**30), total, free)
    else:
        machine = replace(measure(torch.device("cuda")), host_bytes=total, host_free=free)
    return choose_released(residency, resolved, machine, float8=float8)


def _lines(shown: dict[str, Any]) -> list[str]:
    rows = shown["rows"]
    about = "" if rows["text_is_exact"] else "about "
    return [
        f"task        {shown['task']} (partition {shown['partition']})",
        f"video       {shown['width']}x{shown['height']}, {shown['frames']} frames at {shown['fps']} fps, "
        f"{shown['seconds']} s",
        f"sound       {shown['audio_samples']} samples, stereo, {shown['sample_rate']} Hz",
        f"rows        {about}{rows['total']}: {about}{rows['text']} text, {rows['conditions']} conditions, "
        f"{rows['audio']} sound, {rows['video']} video",
        f"work        {about}{shown['petaflops']} PFLOP in {shown['steps']} evaluations",
        *(
            f"time        {about}"
            + ", ".join(f"{value:.0f} s {tier}" for tier, value in tiers.items())
            + f" on one {device}, everything resident; denoising "
            + ", ".join(f"{value:.0f} s" for value in shown["denoise_seconds"][device].values())
            for device, tiers in shown["request_seconds"].items()
        ),
        f"memory      {about}{shown['peak_gib']} GiB while denoising, the transformer alone on the device, in bfloat16",
    ]
