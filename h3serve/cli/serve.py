"""`h3serve serve`: the HTTP service; `h3serve keys`: API keys for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from h3serve.cli.console import say
from h3serve.cli.options import checked, with_options
from h3serve.core.errors import RequestError
from h3serve.core.model_name import check_model
from h3serve.core.settings import Partitions, is_float8
from h3serve.prompts.endpoint import open_endpoint
from h3serve.service.http.allowed_hosts import is_host
from h3serve.service.http.api_keys import add_key
from h3serve.service.service_settings import ServiceSettings

DEMO_ADAPTERS = Path(__file__).parent.parent / "weights" / "demo" / "adapters"


@with_options()
def serve(
    *,
    settings: ServiceSettings,
    replicas: Annotated[int, typer.Option(help="Workers on the Ray cluster.")] = 1,
) -> None:
    """Serve the HTTP API and the web page until SIGTERM, which lets running jobs finish."""
    _check(settings, replicas)
    from h3serve.service.http.server import serve as run_server  # only this command pays for the web libraries

    if settings.model == "demo" and settings.adapter_folder is None:
        settings = replace(settings, adapter_folder=DEMO_ADAPTERS)
    aliases = tuple(_alias(text, settings.model) for text in settings.aliases)
    run_server(replace(settings, aliases=aliases, devices=settings.devices * replicas, max_priority=10))


def _check(settings: ServiceSettings, replicas: int) -> None:
    """Raises RequestError, before anything starts, for an option that cannot be had."""
    checked("--partition", settings.partition, Partitions)
    if replicas < 1 or (replicas > 1 and settings.ray is None):
        raise RequestError("--replicas", replicas, "1 or more, with --ray; without Ray --device is repeated")
    for name in settings.allowed_hosts:
        if not is_host(name):
            raise RequestError("--allowed-host", name, "a host name or an address, without scheme and port")
    if settings.admin_without_key and settings.keys is not None:
        raise RequestError("--admin-without-key", True, "not with --keys: `h3serve keys NAME --admin` makes admins")
    named = ("--weights-folder", settings.weights), ("--adapter-folder", settings.adapter_folder)
    single = [(flag, (folder,)) for flag, folder in named if folder is not None]
    for flag, folders in (("--allow-folder", settings.folders), *single):
        for folder in folders:
            if not folder.is_dir():
                raise RequestError(flag, str(folder), "an existing folder")
    open_endpoint(settings.enhance)
    is_float8(settings.quality, settings.quantize)
    check_model(settings.model)


def _alias(text: str, model: str) -> str:
    """NAME of NAME=MODEL, where MODEL is the served one."""
    name, equals, of = text.partition("=")
    known = {model, ServiceSettings(model).model_name}
    if not name or not equals or of not in known:
        raise RequestError(
            "--model-alias", text, f"NAME=MODEL, MODEL being the served one, {' or '.join(sorted(known))}"
        )
    return name


def keys(
    name: Annotated[str, typer.Argument(help="Who gets the key.")],
    file: Annotated[Path, typer.Option(help="The key file, made if missing; only a hash is kept in it.")],
    admin: Annotated[bool, typer.Option("--admin", help="The key may update weights and change the workers.")] = False,
) -> None:
    """Make an API key and print it, this once; limits can be edited in the file."""
    say(add_key(file, name, is_admin=admin))
