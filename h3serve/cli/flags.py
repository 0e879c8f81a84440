"""Flags that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

RequestFile = Annotated[Path | None, typer.Argument(help="A request as JSON (the HTTP body).", show_default=False)]
Model = Annotated[str, typer.Option(help="A folder, a hub id, or demo.")]
Task = Annotated[str | None, typer.Option(help="t2va, fl2va or ref2va; follows from the media if left out.")]
Prompt = Annotated[str | None, typer.Option(help="What to show and to sound like.")]
FirstFrame = Annotated[str | None, typer.Option(help="Picture for the first frame.")]
LastFrame = Annotated[str | None, typer.Option(help="Picture for the last frame.")]
Reference = Annotated[
    list[str] | None,
    typer.Option(help="Reference picture, clip or sound, in order; KIND=URI names the kind. Repeatable."),
]
ShortEdge = Annotated[int | None, typer.Option(help="Short edge in pixels; 768 is recommended.")]
AspectRatio = Annotated[str | None, typer.Option(help="auto or W:H.")]
Duration = Annotated[float | None, typer.Option(help="Seconds, 4 to 15; without a request file 5, but for references.")]
Steps = Annotated[int | None, typer.Option(help="Model evaluations.")]
Seed = Annotated[int | None, typer.Option(help="0 to 2^63-1.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")]
DType = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
QualityTier = Annotated[
    str, typer.Option("--quality", help="exact, lossless, or fast: layers of 8 bits, half the memory.")
]
Quantize = Annotated[
    str, typer.Option(help="Linear layers of transformer and text encoder: none, fp8, or auto: fp8 at fast.")
]
Residency = Annotated[str, typer.Option(help="Where weights live: auto, resident, offload or stream.")]
EncodingsCache = Annotated[
    Path | None, typer.Option(help="Keep encoded prompts and references in this folder, for later runs too.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder for what is made once or fetched, and kept; ~/.cache/h3serve if left out.")
]
Gpus = Annotated[int, typer.Option(help="GPUs that make one clip together.")]
Ulysses = Annotated[int | None, typer.Option(help="Of them, so many share the sequence; chosen if left out.")]
TensorParallel = Annotated[int | None, typer.Option("--tp", help="So many share every linear; chosen if left out.")]
TextEncoderShare = Annotated[
    str, typer.Option("--text-encoder", help="On several GPUs: sharded over them, replicated on each, or auto.")
]
Revision = Annotated[str | None, typer.Option(help="Revision of a hub id.")]


def request_fields(
    task: str | None,
    prompt: str | None,
    short_edge: int | None,
    aspect_ratio: str | None,
    duration: float | None,
    steps: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """Flags under the request's field names; None where a flag was not given."""
    return {
        "task": task,
        "prompt": prompt,
        "short_edge": short_edge,
        "aspect_ratio": aspect_ratio,
        "duration_seconds": duration,
        "num_inference_steps": steps,
        "seed": seed,
    }
