"""Which addresses may be asked for on somebody's word: URLs that can be reached at all, and public hosts.

The blocks follow IANA's registries of special-purpose addresses; nothing depends on the tables of the
Python at hand, which differ from release to release.
"""

from __future__ import annotations

import ipaddress
import re
import socket

import httpx

ALLOWED = "an http:// or https:// URL with a host, a port from 1 to 65535 or none, and no user name or password"
MAX_URL = 2000  # characters of one that is kept, for a webhook
_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_HOST = 253

# Outside 2000::/3 IANA has given out no public IPv6 address, but for the two wrappings of IPv4 below.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_WRAPPINGS = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))  # IPv4-mapped, NAT64
_RESERVED_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)
_RESERVED_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by carriers
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's host, which looks public
            "169.254.0.0/16",  # link-local, with the clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)


class AddressError(ValueError):
    """Why a URL cannot or may not be asked for, in one clause without the URL itself."""


def url_problem(url: str, *, private: bool = False) -> str | None:
    """Why nothing can ever be sent to `url`; None if that is not known before trying.

    `private` says whether addresses inside one's own network are allowed. No name is looked up.
    """
    if len(url) > MAX_URL:
        return f"it has {len(url)} characters, at most {MAX_URL} are taken"
    try:
        host, _ = host_and_port(read_url(url))
        if not private:
            _check_written_address(host)
    except AddressError as error:
        return str(error)
    return None


def read_url(url: str) -> httpx.URL:
    """The URL, its host in the form that DNS knows (IDNA 2008); AddressError if it cannot be reached."""
    try:
        parsed = httpx.URL(url)
        host_and_port(parsed)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise AddressError(f"it is not {ALLOWED}") from error
    return parsed


def host_and_port(url: httpx.URL) -> tuple[str, int]:
    """Where to connect, in ASCII; AddressError for what `ALLOWED` leaves out."""
    if url.scheme not in _PORTS:
        raise AddressError(f"it is not http:// or https://; it must be {ALLOWED}")
    if url.userinfo:
        raise AddressError(f"a user name or password is not taken; it must be {ALLOWED}")
    host = url.raw_host.decode("ascii")
    if not _is_host(host):
        raise AddressError(f"{host[:80]!r} is not a host name; it must be {ALLOWED}")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 1 <= port <= 65535:
        raise AddressError(f"there is no port {port}; it must be {ALLOWED}")
    return host, port


def is_public(address: str) -> bool:
    """True if the address is one of the open internet, also inside the IPv6 wrappings of IPv4 that are routed."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if not any(ip in block for block in _WRAPPINGS):
            return ip in _GLOBAL_UNICAST and not any(ip in block for block in _RESERVED_V6)
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return not any(ip in block for block in _RESERVED_V4)


def check_public(host: str, addresses: list[str]) -> None:
    """AddressError unless every address that `host` has is public: one of them would be enough to get in."""
    if not all(is_public(address) for address in addresses):
        raise AddressError(f"{host} is at a private or local address, where this server sends no requests")


def _check_written_address(host: str) -> None:
    """AddressError for a host that says by itself that it is private: an address, or localhost."""
    if ":" in host:
        check_public(host, [host])
        return
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        raise AddressError(f"{host} is this machine itself, where this server sends no requests")
    try:
        check_public(host, [socket.inet_ntoa(socket.inet_aton(name))])  # reads 127.1 and 0x7f000001 as well
    except OSError:
        return  # a name


def _is_host(host: str) -> bool:
    if ":" in host:  # httpx has read it as an IPv6 address
        return True
    name = host.removesuffix(".")
    return len(name) <= _MAX_HOST and all(_LABEL.fullmatch(label) for label in name.split("."))
