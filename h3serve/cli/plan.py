"""`h3serve plan`: what a request will be, before anything is computed."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from h3serve.cli import flags
from h3serve.cli.body import build_request, read_body
from h3serve.cli.console import say


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show canvas, frames, rows, work and memory of a request."""
    fields = flags.request_fields(task, prompt, short_edge, aspect_ratio, duration, steps, seed)
    keyframes = {0: first_frame, -1: last_frame}
    request = build_request(read_body(request_file), fields, keyframes=keyframes, references=reference or [])
    from h3serve.pipeline.ingest import Ingest

    ingest = Ingest()
    if model is not None:
        from h3serve.core.tasks import PARTITION_OF
        from h3serve.weights.locate import locate
        from h3serve.weights.size_rules import read_size_rules

        partition = PARTITION_OF[request.task]
        ingest = Ingest(read_size_rules(locate(model, partition).partition(partition).folder))
    shown = ingest.plan(request).describe()
    if as_json:
        say(json.dumps(shown, indent=2))
        return
    for line in _lines(shown):
        say(line)


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
        f"memory      {about}{shown['peak_gib']} GiB while denoising, transformer resident in bfloat16",
    ]
