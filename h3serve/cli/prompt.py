"""`h3serve prompt`: check a prompt against the official form, lay one out, have one written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from h3serve.cli.console import ERRORS, say
from h3serve.cli.options import with_options
from h3serve.cli.request_flags import RequestFlags, build_request
from h3serve.core.errors import RequestError
from h3serve.core.request import GenerationRequest
from h3serve.prompts.complaint import Complaint
from h3serve.prompts.endpoint import EnhanceSettings, open_endpoint
from h3serve.prompts.linter import check_form
from h3serve.prompts.official_form import needs_of
from h3serve.prompts.prompt_template import MOST_SHOTS, prompt_template

app = typer.Typer(help="Prompts in the official form.", no_args_is_help=True)

FLAGS = ("task", "prompt", "first_frame", "last_frame", "references", "duration_seconds")
PromptFile = Annotated[
    Path | None, typer.Argument(help="A request as JSON, or a text file (.txt) with the prompt.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("check")
@with_options(only=FLAGS)
def check(*, prompt_file: PromptFile = None, flags: RequestFlags, as_json: AsJson = False) -> None:
    """Say what in a prompt is not in the official form; exit code 1 if anything is."""
    request = _request(prompt_file, flags)
    found = check_form(request.prompt, needs_of(request))
    if as_json:
        say(json.dumps([complaint.to_json() for complaint in found], indent=2, ensure_ascii=False))
    else:
        for line in _lines(request.prompt, found) or ["nothing to complain of"]:
            say(line)
    if found:
        raise typer.Exit(1)


@app.command("template")
@with_options(only=tuple(name for name in FLAGS if name != "prompt"))
def template(
    *,
    prompt_file: PromptFile = None,
    flags: RequestFlags,
    shots: Annotated[int, typer.Option(help="Shots of equal length.", min=1, max=MOST_SHOTS)] = 1,
) -> None:
    """Print the form of a request with blanks to fill in: fields, alignment line and times of cuts are there."""
    say(prompt_template(needs_of(_request(prompt_file, replace(flags, prompt="{…}"))), shots))


@app.command("enhance")
@with_options(only=(*FLAGS, *(known.name for known in fields(EnhanceSettings))))
def enhance(
    *, prompt_file: PromptFile = None, flags: RequestFlags, settings: EnhanceSettings, as_json: AsJson = False
) -> None:
    """Have a prompt rewritten in the official form by the language model at --enhance-url, and check the answer."""
    endpoint = open_endpoint(settings)
    if endpoint is None:
        raise RequestError("--enhance-url", None, "name the endpoint that rewrites prompts")
    request = _request(prompt_file, flags)
    from h3serve.prompts.enhance import enhance, shown_images

    made = asyncio.run(enhance(request.prompt, needs_of(request), endpoint, shown_images(request)))
    if as_json:
        say(json.dumps(made.to_json(), indent=2, ensure_ascii=False))
        return
    say(made.prompt)
    for line in _lines(made.prompt, made.complaints):
        ERRORS.print(line)


def _request(file: Path | None, flags: RequestFlags) -> GenerationRequest:
    """The request in a JSON file and flags; a text file is its prompt."""
    if file is None or file.suffix != ".txt":
        return build_request(file, flags)
    if flags.prompt is None:
        try:
            flags = replace(flags, prompt=file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise RequestError("prompt file", str(file), f"cannot be read: {why}") from None
    return build_request(None, flags)


def _lines(prompt: str, found: Sequence[Complaint]) -> list[str]:
    return [f"line {prompt.count(chr(10), 0, c.start) + 1}, {c.kind}: {c.message}" for c in found]
