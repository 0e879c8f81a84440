"""`h3serve`: exit code 0 done, 2 the request is wrong (one line on stderr, no traceback), 1 anything else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.main import get_command

from h3serve.cli.console import complain, say
from h3serve.core.errors import H3Error
from h3serve.core.version import VERSION

FILES = {  # command -> file of this folder
    "generate": "generate",
    "plan": "plan",
    "prompt": "prompt",
    "inspect": "inspect",
    "serve": "serve",
    "keys": "serve",
    "scale": "scale",
    **dict.fromkeys(("submit", "watch", "list", "download", "cancel"), "remote"),
    "doctor": "doctor",
    "demo-checkpoint": "demo_checkpoint",
    "adaln": "adaln",
    "lora": "lora",
    "bench": "bench",
    "guard": "guard",
}


NAMES = {"list": "list_"}  # commands that Python has other uses for


def make_app(wanted: str | None = None) -> typer.Typer:
    """The command line. With the name of a command only that one is there, and only its file was imported."""
    app = typer.Typer(
        name="h3serve",
        help="Video with its soundtrack from text, images, videos and audio, with MiniMax-H3.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)  # one command alone is a command all the same
    for name, file in FILES.items():
        if wanted in FILES and name != wanted:
            continue
        module = import_module(f"h3serve.cli.{file}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, NAMES.get(name, name.replace("-", "_"))))
    return app


def _say_version(wanted: bool) -> None:
    if wanted:
        say(VERSION)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")
    ] = False,
) -> None:
    del version


# typer carries its own copy of click, or uses click itself, by version: this finds the right class.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every known failure ends in one line and an exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = get_command(make_app(given[0] if given else None))
        code = command.main(args=given or ["--help"], standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as error:
        complain(error.format_message() if hasattr(error, "format_message") else str(error))
        return 2
    except H3Error as error:
        complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        complain("stopped; nothing was written")
        return 1
