"""`h3serve adaln`: modulation tables on disk, made ahead of the first request that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from h3serve.cli.console import say
from h3serve.cli.options import with_options
from h3serve.core.errors import CheckpointError
from h3serve.core.limits import DEFAULT_STEPS, LIMITS, Partition
from h3serve.core.settings import EngineSettings, cache_folder

if TYPE_CHECKING:
    from h3serve.runtime.adaln.adaln_cache import AdaLN

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
    tiers, shifts = _tiers(partition, settings)
    from h3serve.pipeline.schedule import default_times

    chosen = (flow_shift or shifts[0], audio_flow_shift or shifts[1])
    tiers.prepare(default_times(_partition(partition), chosen, steps))
    _list(tiers)


@app.command("show")
@with_options(only=OPTIONS)
def show(
    *,
    partition: Partitioned = "fl2va",
    settings: EngineSettings,
) -> None:
    """List the files there are, and whether they are of this model and machine."""
    _list(_tiers(partition, settings)[0])


def _tiers(partition: str, settings: EngineSettings) -> tuple[AdaLN, tuple[float, float]]:
    from h3serve.pipeline.engine import resolve_device, resolve_dtype
    from h3serve.runtime.loading import load_modulation
    from h3serve.weights.formats.opened_component import open_component
    from h3serve.weights.locate import locate

    name, where = _partition(partition), resolve_device(settings.device)
    folder = locate(settings.model, name, cache=settings.cache)
    shifts = folder.partition(name).shifts
    kept = cache_folder(settings.cache)
    tiers = load_modulation(
        open_component(folder, "transformer", name),
        device=where,
        dtype=resolve_dtype(settings.dtype, where),
        cache=kept,
    )
    return tiers, (shifts.video, shifts.audio)


def _list(tiers: AdaLN) -> None:
    if tiers.sidecars is None:
        say("this model is small: its tables are made sooner than a file is read, so none are kept")
        return
    files = tiers.sidecars.listing()
    for path, opened in files:
        size = f"{path.stat().st_size / 2**20:.0f} MiB"
        fits = f"{len(opened.keys)} steps" if not isinstance(opened, CheckpointError) else f"not used: {opened}"
        say(f"{path}  {size}, {fits}")
    if not files:
        say(f"no tables in {tiers.sidecars.folder}")


def _partition(name: str) -> Partition:
    if name not in ("fl2va", "ref2va"):
        raise typer.BadParameter("it must be fl2va or ref2va", param_hint="--partition")
    return name  # type: ignore[return-value]
