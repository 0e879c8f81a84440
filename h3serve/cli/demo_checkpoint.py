"""`h3serve demo-checkpoint`: a tiny checkpoint with random weights and every component."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from h3serve.cli.console import say


def demo_checkpoint(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    layout: Annotated[str, typer.Option(help="original or diffusers.")] = "original",
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Write the demo checkpoint, loadable like the real one."""
    from h3serve.weights.demo.demo_random import write_demo_checkpoint

    write_demo_checkpoint(folder, layout, seed=seed)  # type: ignore[arg-type]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    say(f"{folder}: {layout} layout, {size:,} bytes")
