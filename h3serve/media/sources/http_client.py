"""The one way out: a request to an address that somebody named, for media and for webhooks.

Every name is resolved once, all its addresses are checked, and the connection goes to an address that was
checked, so a second DNS answer cannot lead elsewhere. Each redirect is checked the same way. One deadline
covers everything, from the look-up of the name to the last byte.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from h3serve.media.sources.ssrf_rules import AddressError, check_public, host_and_port, read_url

# Nothing that the server could inflate: what is counted is what arrives.
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "h3serve"}


@dataclass(frozen=True)
class Bounds:
    """How long an exchange may take and how far it may lead."""

    total_seconds: float
    connect_seconds: float  # also the longest silence
    max_redirects: int = 0
    private_addresses: bool = False


class OutgoingError(Exception):
    """Why the exchange failed, in one clause without the URL."""


@asynccontextmanager
async def exchange(
    method: str, url: str, bounds: Bounds, *, headers: Mapping[str, str] | None = None, content: bytes = b""
) -> AsyncIterator[httpx.Response]:
    """Send a request and yield the reply, its body unread; OutgoingError with the reason if that fails.

    The deadline holds in the block too. A redirect is followed as far as `bounds` allow; with none allowed
    it is the reply.
    """
    try:
        # No proxy from the environment: the connection must go to the checked address. A reply that redirects is not
        # read, so its connection ends with it: names that share an address must not share one made for one of them.
        async with (
            asyncio.timeout(bounds.total_seconds),
            httpx.AsyncClient(timeout=bounds.connect_seconds, trust_env=False, verify=_tls()) as client,
        ):
            response = await _follow(client, method, read_url(url), bounds, {**_HEADERS, **(headers or {})}, content)
            try:
                yield response
            finally:
                await response.aclose()
    except TimeoutError as error:
        raise OutgoingError(f"it did not end within {bounds.total_seconds:g} s") from error
    except AddressError as error:
        raise OutgoingError(str(error)) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OutgoingError(f"the exchange with its server failed ({type(error).__name__})") from error


async def _follow(
    client: httpx.AsyncClient, method: str, url: httpx.URL, bounds: Bounds, headers: dict[str, str], content: bytes
) -> httpx.Response:
    for _ in range(bounds.max_redirects + 1):
        response = await _send(client, method, url, bounds, headers, content)
        if not response.has_redirect_location or not bounds.max_redirects:
            return response
        await response.aclose()
        try:
            url = read_url(str(url.join(response.headers["Location"])))
        except (httpx.InvalidURL, UnicodeError) as error:
            raise OutgoingError("it is redirected to something that is no URL") from error
    raise OutgoingError(f"it is redirected more than {bounds.max_redirects} times")


async def _send(
    client: httpx.AsyncClient, method: str, url: httpx.URL, bounds: Bounds, headers: dict[str, str], content: bytes
) -> httpx.Response:
    """Ask each checked address until one takes the connection; the request still speaks to the named host."""
    host, port = host_and_port(url)
    addresses = await _resolve(host, port)
    if not bounds.private_addresses:
        check_public(host, addresses)
    for address in addresses:
        request = client.build_request(
            method,
            url.copy_with(host=address),
            headers={**headers, "Host": url.netloc.decode("ascii")},
            content=content,
            extensions={"sni_hostname": host},
        )
        try:
            return await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if address == addresses[-1]:
                raise
    raise AddressError(f"the host {host} is not known")


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of `host`, each once. A look-up cannot be stopped, so its thread is left behind if it must be."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def settle(entries: list[Any] | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(entries or [])

    def ask() -> None:
        entries, problem = None, None
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:  # told to the one who waits
            problem = error
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settle, entries, problem)

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        return list(dict.fromkeys(str(entry[4][0]) for entry in await found))
    except (OSError, UnicodeError) as error:
        raise AddressError(f"the host {host} is not known") from error


@cache
def _tls() -> ssl.SSLContext:
    """The rules for https, read once: it takes 20 ms."""
    return httpx.create_ssl_context(trust_env=False)
