"""`h3serve generate`: a request file and/or flags in, a clip out."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3serve.cli import flags
from h3serve.cli.body import build_request, read_body
from h3serve.cli.console import progress_display, say
from h3serve.media.write.outputs import check_output, check_trace

if TYPE_CHECKING:
    from h3serve.pipeline.generation_progress import OnProgress


def generate(
    request_file: flags.RequestFile = None,
    model: flags.Model = "demo",
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
    out: Annotated[
        list[str] | None,
        typer.Option(help="Result: .mp4, .wav, .npz, or a path ending in / for PNG frames. Repeatable."),
    ] = None,
    device: flags.Device = "auto",
    dtype: flags.DType = "auto",
    quality: flags.QualityTier = "lossless",
    quantize: flags.Quantize = "auto",
    residency: flags.Residency = "auto",
    cache: flags.Cache = None,
    encodings_cache: flags.EncodingsCache = None,
    revision: flags.Revision = None,
    gpus: flags.Gpus = 1,
    ulysses: flags.Ulysses = None,
    tp: flags.TensorParallel = None,
    text_encoder: flags.TextEncoderShare = "auto",
    profile: Annotated[
        str | None, typer.Option(help="Also write a trace of stages, steps and blocks (.json, .json.gz).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Make one clip with its sound."""
    outputs = out or ["out.mp4"]
    for path in outputs:
        check_output(path)
    if profile is not None:
        check_trace(profile)
    fields = flags.request_fields(task, prompt, short_edge, aspect_ratio, duration, steps, seed)
    keyframes = {0: first_frame, -1: last_frame}
    request = build_request(read_body(request_file), fields, keyframes=keyframes, references=reference or [])
    # Only now is torch imported: a wrong request is refused at once.
    from h3serve.core.limits import PARTITION_OF
    from h3serve.pipeline.generator import Generator

    generator = Generator.from_pretrained(
        model,
        partition=PARTITION_OF[request.task],
        device=device,
        dtype=dtype,
        quality=quality,
        quantize=quantize,
        residency=residency,
        cache=None if cache is None else str(cache),
        encodings_cache=None if encodings_cache is None else str(encodings_cache),
        revision=revision,
        gpus=gpus,
        ulysses=ulysses,
        tp=tp,
        text_encoder=text_encoder,
    )
    with closing(generator), progress_display() as display, ExitStack() as stack:
        watch: OnProgress | None = None if quiet else display
        if profile is not None:
            from h3serve.pipeline.profile import profiled

            watch = stack.enter_context(profiled(generator.engine, profile, watch))
        result = generator.generate(request, on_progress=watch, output=outputs[0])
    for path in outputs[1:]:
        result.save(path)
    width, height = result.plan.canvas
    seconds = result.stats["total_seconds"]
    for path in outputs:
        clip = f"{result.plan.frames} frames, {width}x{height}, {result.plan.seconds:.2f} s"
        say(f"{Path(path)}: {clip}, made in {seconds:.1f} s")
    if ranks := result.stats.get("ranks"):
        say(f"{gpus} GPUs as ulysses {ranks['ulysses']} x tp {ranks['tp']}: {ranks['why']}")
