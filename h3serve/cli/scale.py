"""`h3serve scale`: how many workers a running server has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from h3serve.cli.console import say
from h3serve.core.errors import H3Error, RequestError
from h3serve.service.service_settings import ServiceSettings

_DEFAULT = ServiceSettings()
_TIMEOUT_S = 30.0


def scale(
    count: Annotated[int, typer.Argument(help="Workers that should stay.")],
    url: Annotated[str, typer.Option(help="The server.")] = f"http://{_DEFAULT.host}:{_DEFAULT.port}",
    device: Annotated[str | None, typer.Option(help="Where new ones run; spread over --device of the server.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File that holds an admin's API key.")] = None,
) -> None:
    """Add workers to a running server, or let some go once their job is done."""
    import httpx

    headers = {"Authorization": f"Bearer {_key(key_file)}"} if key_file else {}
    body = {"count": count, "device": device}
    try:
        reply = httpx.put(f"{url.rstrip('/')}/v1/admin/workers", json=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise H3Error(f"{url} cannot be reached: {error}") from None
    if reply.status_code != 200:
        raise H3Error(f"{url} refuses: {_reason(reply)}")
    workers = reply.json()["data"]
    states = Counter("leaving" if w["leaving"] else w["state"] for w in workers)
    say(", ".join(f"{number} {state}" for state, number in states.items()))


def _reason(reply: object) -> str:
    """The server's own words, if it is one of ours."""
    try:
        return str(reply.json()["error"]["message"])  # type: ignore[attr-defined]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {reply.status_code}"  # type: ignore[attr-defined]


def _key(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("--key-file", str(path), f"a readable file ({error})") from None
