"""`h3serve adaln`: modulation tables on disk, made ahead of the first request that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from h3serve.cli.console import say
from h3serve.cli.options import checked, with_options
from h3serve.core.errors import CheckpointError
from h3serve.core.limits import DEFAULT_STEPS, LIMITS, Partition
from h3serve.core.settings import EngineSettings, cache_folder

if TYPE_CHECKING:
    from h3serve.runtime.adaln.adaln_cache import AdaLN
    from h3serve.weights.files.checkpoint_folder import SigmaShifts

app = typer.Typer(help="Modulation tables on disk.", no_args_is_help=True)

OPTIONS = ("model", "device", "dtype", "cache")
Partitioned = Annotated[str, typer.Option(help="fl2va or ref2va.")]
Shift = Annotated[
    float | None,
    typer.Option(help="The checkpoint's if left out.", min=LIMITS.min_shift, max=LIMITS.max_shift),
]


@app.command("build")
@with_options(only=OPTIONS)
def build(
    *,
    partition: Partitioned = "fl2va",
    steps: Annotated[int, typer.Option(help="Model evaluations.", min=1, max=LIMITS.max_steps)] = DEFAULT_STEPS,
    flow_shift: Shift = None,
    audio_flow_shift: Shift = None,
    settings: EngineSettings,
) -> None:
    """Make the tables of one schedule and keep them."""
    name = checked("--partition", partition, Partition)
    tables, shifts = _tables(name, settings)
    from h3serve.pipeline.schedule import default_times

    chosen = (flow_shift or shifts.video, audio_flow_shift or shifts.audio)
    tables.prepare(default_times(name, chosen, steps))
    _list(tables)


@app.command("show")
@with_options(only=OPTIONS)
def show(*, partition: Partitioned = "fl2va", settings: EngineSettings) -> None:
    """List the files there are, and whether they are of this model and machine."""
    _list(_tables(checked("--partition", partition, Partition), settings)[0])


def _tables(partition: Partition, settings: EngineSettings) -> tuple[AdaLN, SigmaShifts]:
    """The modulation tables of a partition's transformer, and the checkpoint's own shifts."""
    from h3serve.runtime.loading import load_modulation
    from h3serve.runtime.machine import resolve_device, resolve_dtype
    from h3serve.weights.formats.opened_component import open_component
    from h3serve.weights.locate import locate

    device = resolve_device(settings.device)
    folder = locate(settings.model, partition, cache=settings.cache)
    tables = load_modulation(
        open_component(folder, "transformer", partition),
        device=device,
        dtype=resolve_dtype(settings.dtype, device),
        cache=cache_folder(settings.cache),
    )
    return tables, folder.partition(partition).shifts


def _list(tables: AdaLN) -> None:
    if tables.sidecars is None:
        say("this model is small: its tables are made sooner than a file is read, so none are kept")
        return
    files = tables.sidecars.listing()
    for path, opened in files:
        size = f"{path.stat().st_size / 2**20:.0f} MiB"
        fits = f"{len(opened.keys)} steps" if not isinstance(opened, CheckpointError) else f"not used: {opened}"
        say(f"{path}  {size}, {fits}")
    if not files:
        say(f"no tables in {tables.sidecars.folder}")
