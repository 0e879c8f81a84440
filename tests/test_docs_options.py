"""docs/cli.md has the options of the commands that have many: `python -m tests.test_docs_options` writes them."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from h3serve.cli.main import make_app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
COMMANDS = ("generate", "plan", "serve")


def rows(name: str) -> Iterator[tuple[str, str, str]]:
    """Flag, default and help of every option that the command itself reads."""
    command = typer.main.get_command(make_app(name)).commands[name]  # type: ignore[attr-defined]
    for option in command.params:
        if option.param_type_name == "option":
            no_default = option.default is None or option.default is False
            yield (
                " / ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts)),
                "" if no_default else f"`{'yes' if option.default is True else option.default}`",
                option.help,
            )


def table(name: str) -> str:
    return "".join(f"| {flag} | {default} | {text} |\n" for flag, default, text in rows(name))


def section(page: str, name: str) -> str:
    """The rows of the table below a command's heading."""
    found = re.search(rf"^## `{name}`\n.*?\|---\|---\|---\|\n((?:\|[^\n]*\n)+)", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no table of {name}"
    return found[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_the_options_of(name: str) -> None:
    assert section(PAGE.read_text(), name) == table(name)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    page = PAGE.read_text()
    for name in COMMANDS:
        page = page.replace(section(page, name), table(name))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
