"""`h3serve serve`: the HTTP service; `h3serve keys`: API keys for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from h3serve.cli import flags
from h3serve.cli.console import say
from h3serve.core.errors import RequestError
from h3serve.core.model_name import check_model
from h3serve.core.settings import is_float8
from h3serve.service.http.allowed_hosts import is_host
from h3serve.service.http.api_keys import add_key
from h3serve.service.service_settings import DAY_S, GIB, ConnectionLimits, Retention, ServiceSettings

_DEFAULT = ServiceSettings(model="demo")


def serve(
    model: flags.Model = _DEFAULT.model,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = _DEFAULT.host,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = _DEFAULT.port,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name that requests may call the server, beside loopback. Repeatable.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder of jobs and their files.")] = _DEFAULT.data,
    database: Annotated[str | None, typer.Option(help="postgresql+psycopg://… instead of SQLite in --data.")] = None,
    partition: Annotated[str, typer.Option(help="fl2va, ref2va or both.")] = _DEFAULT.partition,
    device: Annotated[list[str] | None, typer.Option(help="One worker on each: cuda:0, cpu. Repeatable.")] = None,
    dtype: flags.DType = _DEFAULT.dtype,
    quality: flags.QualityTier = _DEFAULT.quality,
    quantize: flags.Quantize = _DEFAULT.quantize,
    residency: flags.Residency = _DEFAULT.residency,
    cache: flags.Cache = None,
    encodings_cache: flags.EncodingsCache = None,
    revision: flags.Revision = None,
    model_alias: Annotated[
        list[str] | None,
        typer.Option(help="NAME=MODEL: callers may name the model so, such as sora-2=demo. Repeatable."),
    ] = None,
    gpus: flags.Gpus = 1,
    ulysses: flags.Ulysses = None,
    tp: flags.TensorParallel = None,
    text_encoder: flags.TextEncoderShare = _DEFAULT.text_encoder,
    ray: Annotated[str | None, typer.Option(help="Run workers on a Ray cluster: its address, or auto.")] = None,
    replicas: Annotated[int, typer.Option(help="Workers on the Ray cluster.")] = 1,
    max_queued: Annotated[int, typer.Option(help="Jobs that may wait; more get 429.")] = _DEFAULT.max_queued,
    max_connections: Annotated[int, typer.Option(help="Open HTTP connections.", min=8)] = _DEFAULT.connections.most,
    max_streams: Annotated[
        int, typer.Option(help="Open event streams of one API key.", min=1)
    ] = _DEFAULT.connections.streams,
    drain: Annotated[float, typer.Option(help="Seconds running jobs may take after SIGTERM.")] = _DEFAULT.drain_s,
    keep_days: Annotated[float, typer.Option(help="Days that files of jobs that ended are kept.")] = 7.0,
    keep_gib: Annotated[float | None, typer.Option(help="GiB of files of jobs that ended that are kept.")] = None,
    keys: Annotated[Path | None, typer.Option(help="File of API keys; without it anybody may call.")] = None,
    admin_without_key: Annotated[
        bool, typer.Option("--admin-without-key", help="Without --keys, clients on this machine may use admin routes.")
    ] = False,
    allow_folder: Annotated[list[Path] | None, typer.Option(help="Requests may name files in it. Repeatable.")] = None,
    weights_folder: Annotated[
        Path | None, typer.Option(help="Admin keys may update the weights from checkpoints in it.")
    ] = None,
    fetch_urls: Annotated[bool, typer.Option(help="Requests may name http(s) URLs.")] = _DEFAULT.fetch_urls,
    webhook_secret: Annotated[Path | None, typer.Option(help="File with the webhook signing secret (whsec_…).")] = None,
    webhook_private: Annotated[bool, typer.Option(help="Webhooks may go to private addresses.")] = False,
) -> None:
    """Serve the HTTP API and the web page until SIGTERM, which lets running jobs finish."""
    if partition not in ("fl2va", "ref2va", "both"):
        raise RequestError("--partition", partition, "fl2va, ref2va or both")
    if replicas < 1 or (replicas > 1 and ray is None):
        raise RequestError("--replicas", replicas, "1 or more, with --ray; without Ray --device is repeated")
    for name in allowed_host or ():
        if not is_host(name):
            raise RequestError("--allowed-host", name, "a host name or an address, without scheme and port")
    if admin_without_key and keys is not None:
        raise RequestError("--admin-without-key", True, "not with --keys: `h3serve keys NAME --admin` makes admins")
    for folder in allow_folder or ():
        if not folder.is_dir():
            raise RequestError("--allow-folder", str(folder), "an existing folder")
    is_float8(quality, quantize)
    if weights_folder is not None and not weights_folder.is_dir():
        raise RequestError("--weights-folder", str(weights_folder), "an existing folder")
    check_model(model)
    aliases = tuple(_alias(text, model) for text in model_alias or ())
    from h3serve.service.http.server import serve as run_server  # only this command pays for the web libraries

    kept_bytes = None if keep_gib is None else int(keep_gib * GIB)
    run_server(
        ServiceSettings(
            model=model,
            data=data,
            database=database,
            host=host,
            port=port,
            allowed_hosts=tuple(allowed_host or ()),
            partition=partition,  # type: ignore[arg-type]
            devices=tuple(device or _DEFAULT.devices) * replicas,
            dtype=dtype,
            quality=quality,  # type: ignore[arg-type]
            quantize=quantize,  # type: ignore[arg-type]
            residency=residency,
            cache=cache,
            encodings_cache=encodings_cache,
            revision=revision,
            aliases=aliases,
            gpus=gpus,
            ulysses=ulysses,
            tp=tp,
            text_encoder=text_encoder,
            ray=ray,
            max_queued=max_queued,
            connections=ConnectionLimits(most=max_connections, streams=max_streams),
            drain_s=drain,
            keys=keys,
            admin_without_key=admin_without_key,
            folders=tuple(allow_folder or ()),
            weights=weights_folder,
            fetch_urls=fetch_urls,
            webhook_secret=webhook_secret,
            webhook_private=webhook_private,
            max_priority=10,
            retention=Retention(files_s=keep_days * DAY_S, files_bytes=kept_bytes),
        )
    )


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
