"""Media from the web, into a file: the size is counted as it arrives."""

from __future__ import annotations

import asyncio
import re
from typing import IO

import httpx

from h3serve.media.sources.http_client import Bounds, OutgoingError, exchange
from h3serve.media.sources.media_file import MediaFile, SourcePolicy


def write_url(out: IO[bytes], url: str, media: MediaFile, policy: SourcePolicy) -> None:
    """Fetch `url` into `out`. Raises MediaError with the reason; blocks, and not from a running event loop."""
    asyncio.run(_fetch(out, url, media, policy))


def shown_url(url: str) -> str:
    """The address without user, password, query and fragment, which may be secrets."""
    scheme, _, rest = re.split(r"[?#]", url, maxsplit=1)[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


async def _fetch(out: IO[bytes], url: str, media: MediaFile, policy: SourcePolicy) -> None:
    bounds = Bounds(policy.total_seconds, policy.connect_seconds, policy.max_redirects, policy.private_addresses)
    try:
        async with exchange("GET", url, bounds) as response:
            await _receive(out, response, media)
    except OutgoingError as error:
        raise media.error(f"it cannot be fetched: {error}") from error


async def _receive(out: IO[bytes], response: httpx.Response, media: MediaFile) -> None:
    limit = media.limits.max_file_bytes
    if response.status_code != 200:
        raise media.error(f"its server answered {response.status_code}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise media.error("its server insists on compressing it")
    length = response.headers.get("Content-Length", "")
    received = int(length) if re.fullmatch("[0-9]{1,20}", length) else 0
    if received <= limit:
        received = 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            if received > limit:
                break
            out.write(chunk)
    if received > limit:
        raise media.error(f"it has more than {limit} bytes")
    if not received:
        raise media.error("it has no content")
