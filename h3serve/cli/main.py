"""`h3serve`: exit code 0 done, 2 the request is wrong (one line on stderr, no traceback), 1 anything else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from h3serve.cli import adaln, bench, demo_checkpoint, doctor, generate, guard, inspect, plan, serve
from h3serve.cli.console import complain
from h3serve.core.errors import H3Error

app = typer.Typer(
    name="h3serve",
    help="Video with its soundtrack from text, pictures, clips and sound, with MiniMax-H3.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("generate")(generate.generate)
app.command("plan")(plan.plan)
app.command("inspect")(inspect.inspect)
app.command("serve")(serve.serve)
app.command("keys")(serve.keys)
app.command("doctor")(doctor.doctor)
app.command("demo-checkpoint")(demo_checkpoint.demo_checkpoint)
app.add_typer(adaln.app, name="adaln")
app.add_typer(bench.app, name="bench")
app.add_typer(guard.app, name="guard")


# typer carries its own copy of click, or uses click itself, by version: this finds the right class.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every known failure ends in one line and an exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = get_command(app).main(args=given or ["--help"], standalone_mode=False)
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
