"""The command line as a whole: what its start costs."""

import subprocess
import sys

import pytest

from h3serve.cli.main import FILES, run
from h3serve.core.version import VERSION

LOOK = "import sys; from h3serve.cli.main import run; run(sys.argv[1:]); print(*sys.modules)"


@pytest.mark.parametrize("arguments", [["serve", "--model", "/no/such"], ["plan", "--prompt", "a", "--duration", "99"]])
def test_a_command_imports_nothing_heavy_to_refuse(arguments: list[str]) -> None:
    """The process of `serve` is the HTTP server: it never imports torch."""
    done = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True, check=True)
    assert "h3serve: " in done.stderr and "Traceback" not in done.stderr
    assert not {"torch", "transformers", "scipy", "h3serve.cli.guard"} & set(done.stdout.split())


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument: str) -> None:
    """Their time is that of imports: Python, typer and the settings are all they need."""
    done = subprocess.run([sys.executable, "-c", LOOK, argument], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "scipy", "skimage", "fastapi", "sqlalchemy"} & set(done.stdout.split())
    assert argument == "--help" or done.stdout.startswith(f"{VERSION}\n")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in FILES)


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nope"]) == 2
    assert capsys.readouterr().err == "h3serve: No such command 'nope'.\n"
