"""Media from the web, safely: the one place that connects to addresses which a request names.

Every name is resolved once, all its addresses are checked, and the connection goes to the address that was
checked, so a second DNS answer cannot lead elsewhere. Each redirect is checked the same way. One deadline
covers everything; the size is counted as it arrives.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from typing import IO

import httpx

from h3serve.media.sources import MediaFile, SourcePolicy

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Nothing that the server could inflate: what is counted is what arrives.
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "h3serve"}


def write_url(out: IO[bytes], url: str, media: MediaFile, policy: SourcePolicy) -> None:
    """Fetch `url` into `out`. Raises MediaError with the reason; blocks, and not from a running event loop."""
    asyncio.run(_within_deadline(out, url, media, policy))


def shown_url(url: str) -> str:
    """The address without user, password, query and fragment, which may be secrets."""
    scheme, _, rest = re.split(r"[?#]", url, maxsplit=1)[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


async def _within_deadline(out: IO[bytes], url: str, media: MediaFile, policy: SourcePolicy) -> None:
    try:
        async with asyncio.timeout(policy.total_seconds):
            await _follow(out, url, media, policy)
    except TimeoutError as error:
        raise media.error(f"it did not arrive within {policy.total_seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise media.error(f"it cannot be fetched ({type(error).__name__})") from error


async def _follow(out: IO[bytes], url: str, media: MediaFile, policy: SourcePolicy) -> None:
    timeout = httpx.Timeout(policy.connect_seconds)
    # No proxy from the environment: the connection must go to the checked address.
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client:
        target = httpx.URL(url)
        for _ in range(policy.max_redirects + 1):
            request = await _pinned_request(client, target, media, policy)
            response = await client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    await _receive(out, response, media)
                    return
                target = target.join(response.headers["Location"])
            finally:
                await response.aclose()
    raise media.error(f"it was redirected more than {policy.max_redirects} times")


async def _pinned_request(
    client: httpx.AsyncClient, url: httpx.URL, media: MediaFile, policy: SourcePolicy
) -> httpx.Request:
    """A request to the checked address that still speaks to the named host (Host header, TLS name)."""
    if url.scheme not in ("http", "https") or not url.host:
        raise media.error("it leads to an address that is not http:// or https://")
    if url.userinfo:
        raise media.error("addresses with a user name or password are not fetched")
    address = await _checked_address(url, media, policy)
    return client.build_request(
        "GET",
        url.copy_with(host=address),
        headers={**_HEADERS, "Host": url.netloc.decode("ascii")},
        extensions={"sni_hostname": url.raw_host.decode("ascii")},
    )


async def _checked_address(url: httpx.URL, media: MediaFile, policy: SourcePolicy) -> str:
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise media.error(f"the host {url.host} is not known") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not policy.private_addresses and not all(is_public(address) for address in addresses):
        raise media.error(f"{url.host} is at a private or local address, which this server does not fetch from")
    return addresses[0]


def is_public(address: str) -> bool:
    """True if the address is one of the open internet, also inside IPv6 wrappings of IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast


async def _receive(out: IO[bytes], response: httpx.Response, media: MediaFile) -> None:
    limit = media.limits.max_file_bytes
    if response.status_code != 200:
        raise media.error(f"its server answered {response.status_code}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise media.error("its server insists on compressing it")
    length = response.headers.get("Content-Length", "")
    received = int(length) if length.isdigit() else 0
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
