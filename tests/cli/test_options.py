"""What a command is given by the fields of the settings classes that it takes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from h3serve.cli.options import with_options
from h3serve.core.settings import option


@dataclass(frozen=True)
class Inner:
    seconds: float | None = option(120.0, "Minutes to wait.", flag="--minutes", unit=60.0)
    size: int | None = option(None, "KiB to keep.", flag="--kib", unit=1024)
    hidden: int = 3


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"] = option("a", "a or b.")
    place: str = option("here", "Where.", command_line="there")
    names: tuple[str, ...] = option(("x",), "Names. Repeatable.", flag="--name")
    folder: Path | None = option(None, "A folder.")
    count: int = option(5, "How many.", least=2)
    loud: bool = option(False, "Loudly.", flag="--loud")
    inner: Inner = field(default_factory=Inner)


def app_of(seen: list[object], **chosen: tuple[str, ...]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options(**chosen)
    def command(*, first: Annotated[str, typer.Argument()], outer: Outer, more: int = 1) -> None:
        """What it does."""
        seen.extend([first, outer, more])

    return app


def given(*arguments: str, **chosen: tuple[str, ...]) -> Outer:
    seen: list[object] = []
    result = CliRunner().invoke(app_of(seen, **chosen), ["first", *arguments])
    assert result.exit_code == 0, result.output
    assert seen[0] == "first" and isinstance(seen[1], Outer)
    return seen[1]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ((), Outer(place="there")),  # the command line's own default
        (("--kind", "b"), Outer("b", "there")),
        (("--name", "y", "--name", "z"), Outer(place="there", names=("y", "z"))),
        (("--folder", "/f", "--count", "2", "--loud"), Outer("a", "there", ("x",), Path("/f"), 2, True)),
        (("--minutes", "0.5", "--kib", "1.5"), Outer(place="there", inner=Inner(seconds=30.0, size=1536))),
    ],
)
def test_flags_become_fields(arguments: tuple[str, ...], settings: Outer) -> None:
    assert given(*arguments) == settings


@pytest.mark.parametrize("arguments", [("--hidden", "4"), ("--count", "1"), ("--names", "y"), ("--kib", "much")])
def test_what_is_no_option_is_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app_of([]), ["first", *arguments]).exit_code == 2


def test_a_command_may_take_some_of_the_fields() -> None:
    assert given("--kind", "b", only=("kind",)) == Outer("b")
    assert given("--kind", "b", without=("place",)) == Outer("b")
    for chosen in ({"only": ("kind",)}, {"without": ("place",)}):
        assert CliRunner().invoke(app_of([], **chosen), ["first", "--place", "x"]).exit_code == 2


def test_a_commands_own_option_hides_a_field_of_its_name() -> None:
    seen: list[object] = []
    app = typer.Typer()

    @app.command()
    @with_options(without=("kind",))
    def command(*, kind: str = "c", outer: Outer) -> None:
        seen.extend([kind, outer.kind])

    assert CliRunner().invoke(app, ["--kind", "b"]).exit_code == 0
    assert seen == ["b", "a"]


def test_help_shows_each_option_with_its_default() -> None:
    shown = " ".join(CliRunner().invoke(app_of([]), ["--help"], env={"COLUMNS": "200"}).output.split())
    for words in ("What it does.", "a or b.", "[default: a]", "--minutes", "[default: 2.0]", "--more"):
        assert words in shown, shown
