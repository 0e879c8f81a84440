"""`h3serve generate`: a request file and/or flags in, a video out."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from h3serve.cli.console import progress_display, say
from h3serve.cli.options import with_options
from h3serve.cli.request_flags import RequestFile, RequestFlags, build_request
from h3serve.core.limits import PARTITION_OF
from h3serve.core.settings import EngineSettings
from h3serve.media.write.outputs import check_output, check_trace

if TYPE_CHECKING:
    from h3serve.pipeline.generation_progress import OnProgress


@with_options(without=("partition",))
def generate(
    *,
    request_file: RequestFile = None,
    flags: RequestFlags,
    settings: EngineSettings,
    out: Annotated[
        list[str] | None,
        typer.Option(help="Result: .mp4, .wav, .npz, or a path ending in / for PNG frames. Repeatable."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Also write a trace of stages, steps and blocks (.json, .json.gz).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Make one video with its soundtrack."""
    outputs = out or ["out.mp4"]
    for path in outputs:
        check_output(path)
    if profile is not None:
        check_trace(profile)
    request = build_request(request_file, flags)
    # Only now is torch imported: a wrong request is refused at once.
    from h3serve.pipeline.generator import Generator

    settings = replace(settings, partition=PARTITION_OF[request.task])
    generator = Generator.from_pretrained(**vars(settings))
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
        made = f"{result.plan.frames} frames, {width}x{height}, {result.plan.seconds:.2f} s"
        say(f"{Path(path)}: {made}, made in {seconds:.1f} s")
    if ranks := result.stats.get("ranks"):
        say(f"{settings.gpus} GPUs as ulysses {ranks['ulysses']} x tp {ranks['tp']}: {ranks['why']}")
