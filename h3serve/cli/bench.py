"""`h3serve bench`: a door to the benchmarks, which lie beside the package in a checkout of its repository."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from h3serve.core.errors import RequestError

CHECKOUT = Path(__file__).parents[2]


def find_benchmarks(checkout: Path = CHECKOUT) -> typer.Typer:
    """The benchmarks' own command line; one that says where they are if only the package is here."""
    if (checkout / "bench" / "speed" / "commands.py").is_file():
        sys.path.insert(0, str(checkout))
        benchmarks: typer.Typer = import_module("bench.speed.commands").app
        return benchmarks
    missing = typer.Typer(cls=_Elsewhere, help="Benchmarks: in h3serve's source repository.", no_args_is_help=True)
    missing.callback()(lambda: None)
    return missing


class _Elsewhere(TyperGroup):
    """A group of commands that are not here."""

    def get_command(self, ctx: Any, cmd_name: str) -> NoReturn:
        """Raises RequestError, whatever was asked for."""
        del ctx
        raise RequestError("bench", cmd_name, "the benchmarks are in h3serve's source repository, not in the package")


app = find_benchmarks()
