"""`h3serve inspect`: what a checkpoint holds and whether it is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from h3serve.cli.console import say
from h3serve.cli.options import checked, with_options
from h3serve.core.errors import CheckpointError
from h3serve.core.limits import Partition
from h3serve.core.settings import ModelSettings


@with_options(only=("revision", "cache"))
def inspect(
    *,
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or demo.")],
    partition: Annotated[str | None, typer.Option(help="Which must be there (and is fetched of a hub id).")] = None,
    settings: ModelSettings,
) -> None:
    """Print partitions, layout, tensors, dtypes, bytes and the load canary's verdict."""
    from h3serve.weights.formats.inspection import ComponentReport, inspect_model
    from h3serve.weights.locate import locate

    def lines(part: ComponentReport) -> list[str]:
        kinds = ", ".join(f"{count} {dtype}" for dtype, count in part.dtypes.items())
        counts = f"{part.tensors} tensors ({kinds}), {part.unused} unused, {part.parameters:,} parameters"
        head = f"{part.partition} {part.name}: {counts}, {part.bytes:,} bytes in {part.files} files"
        return [head, *(f"  {finding.level}: {finding.text}" for finding in part.findings)]

    wanted = None if partition is None else checked("--partition", partition, Partition)
    report = inspect_model(locate(model, wanted, revision=settings.revision, cache=settings.cache))
    say(f"{report.root}: {report.layout} layout")
    for name, tasks in report.partitions.items():
        shifts = report.shifts[name]
        say(f"partition {name}: {', '.join(tasks)}; flow shifts {shifts.video:g} video, {shifts.audio:g} audio")
    for part in report.components:
        say("\n".join(lines(part)))
    say(f"verdict: {report.verdict}")
    if report.verdict == "fault":
        raise CheckpointError(f"{report.root} is not whole: see the findings above")
