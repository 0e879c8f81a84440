"""`h3serve plan`: what a request will be, before anything is computed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from h3serve.cli.console import say
from h3serve.cli.options import with_options
from h3serve.cli.request_flags import RequestFile, RequestFlags, build_request
from h3serve.core.errors import RequestError
from h3serve.core.geometry import RELEASED_SIZES, SizeRules
from h3serve.core.limits import PARTITION_OF, Partition
from h3serve.core.request import GenerationRequest
from h3serve.core.settings import ModelSettings, check_adapter_folder

if TYPE_CHECKING:
    from h3serve.runtime.machine import Machine
    from h3serve.runtime.offload.policy import Held


@with_options(
    only=(*(known.name for known in fields(RequestFlags)), "cache", "quantize", "residency", "adapter_folder")
)
def plan(
    *,
    request_file: RequestFile = None,
    model: Annotated[
        str | None, typer.Option(help="Take sizes from this checkpoint; the released ones if left out.")
    ] = None,
    flags: RequestFlags,
    settings: ModelSettings,
    device_gib: Annotated[float | None, typer.Option(help="Device memory to plan for; this GPU's if left out.")] = None,
    host_gib: Annotated[float | None, typer.Option(help="Host memory to plan for; this machine's if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show canvas, frames, rows, work and memory of a request."""
    request = build_request(request_file, flags)
    from h3serve.pipeline.ingest import Ingest
    from h3serve.runtime.offload.policy import choose_on, released

    float8 = settings.float8
    machine = _machine(device_gib, host_gib)
    rules, held = RELEASED_SIZES, released(float8=float8)
    if model is not None:
        rules, held = _checkpoint(
            model, PARTITION_OF[request.task], settings.cache, on_gpu=machine is not None, float8=float8
        )
    resolved = Ingest(rules, held.model).plan(request)
    shown, lines = resolved.describe(), []
    if request.adapters:
        size = _adapter_bytes(request, settings.adapter_folder)
        lines.append(
            f"adapters    {len(request.adapters)}, {size / 2**30:.2f} GiB on the device beside everything else"
        )
        shown["adapters"] = {"count": len(request.adapters), "bytes": size}
        machine = machine and replace(machine, device_free=machine.device_free - size)
    if machine is not None:
        fused = device_gib is None and _fuses_here(held)
        choice = choose_on(machine, settings.residency, resolved, held, fused=fused, float8=float8)
        shown["placement"], lines = choice.describe(), [*lines, *choice.lines()]
    if as_json:
        say(json.dumps(shown, indent=2))
        return
    for line in [*_lines(shown, "bfloat16" if held.model.value_bytes == 2 else "float32"), *lines]:
        say(line)


def _checkpoint(
    model: str, partition: Partition, cache: Path | None, *, on_gpu: bool, float8: bool
) -> tuple[SizeRules, Held]:
    """Size rules and sizes of a checkpoint, as they would be here: float32 on a CPU.

    CheckpointError where it would not be loaded either.
    """
    import torch

    from h3serve.runtime.offload.policy import held_as
    from h3serve.weights.formats.checksums import read_size_rules
    from h3serve.weights.formats.opened_component import open_checkpoint
    from h3serve.weights.formats.tokenizer_files import open_tokenizer
    from h3serve.weights.locate import locate

    folder = locate(model, partition, cache=cache)
    opened = open_checkpoint(folder, partition)
    open_tokenizer(folder, partition, opened["text_encoder"].config)
    held = held_as({partition: opened}, torch.bfloat16 if on_gpu else torch.float32, float8=float8)
    return read_size_rules(folder.partition(partition).folder), held


def _machine(device_gib: float | None, host_gib: float | None) -> Machine | None:
    """The machine that was described, or this one if it has a GPU."""
    import torch

    from h3serve.runtime.machine import Machine, measure
    from h3serve.system.host_memory import host_memory

    if device_gib is None and not torch.cuda.is_available():
        return None
    total, free = (int(host_gib * 2**30),) * 2 if host_gib is not None else host_memory()
    if device_gib is not None:
        return Machine(int(device_gib * 2**30), int(device_gib * 2**30), total, free)
    return replace(measure(torch.device("cuda")), host_bytes=total, host_free=free)


def _adapter_bytes(request: GenerationRequest, folder: Path | None) -> int:
    """Roughly what the request's adapters take on the device: what their files hold."""
    from h3serve.runtime.adapters.adapter_shelf import adapter_path

    total = 0
    for index, choice in enumerate(request.adapters):
        where = f"adapters[{index}].name"
        try:
            total += adapter_path(choice.name, check_adapter_folder(folder), where).stat().st_size
        except OSError as error:
            raise RequestError(where, choice.name, f"{error.strerror}") from None
    return total


def _fuses_here(held: Held) -> bool:
    """Whether this machine's GPU encodes with our kernels; of one that is only described nobody knows."""
    import torch

    from h3serve.models.quality import fuses_encoder

    return fuses_encoder(held.video_vae, "lossless", torch.device("cuda"))


def _lines(shown: dict[str, Any], dtype: str) -> list[str]:
    rows = shown["rows"]
    roughly = "" if rows["text_is_exact"] else "about "
    return [
        f"task        {shown['task']} (partition {shown['partition']})",
        f"video       {shown['width']}x{shown['height']}, {shown['frames']} frames at {shown['fps']} fps, "
        f"{shown['seconds']} s",
        f"audio       {shown['audio_samples']} samples, stereo, {shown['sample_rate']} Hz",
        f"rows        {roughly}{rows['total']}: {roughly}{rows['text']} text, {rows['conditions']} conditions, "
        f"{rows['audio']} audio, {rows['video']} video",
        f"work        {roughly}{shown['petaflops']} PFLOP in {shown['steps']} evaluations",
        *(
            f"time        {roughly}"
            + ", ".join(f"{value:.0f} s {quality}" for quality, value in times.items())
            + f" on one {device}, everything resident; denoising "
            + ", ".join(f"{value:.0f} s" for value in shown["denoise_seconds"][device].values())
            for device, times in shown["request_seconds"].items()
        ),
        f"memory      {roughly}{shown['peak_gib']} GiB while denoising, "
        f"the transformer alone on the device, in {dtype}",
    ]
