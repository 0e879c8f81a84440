"""Which names a server answers to, and which clients sit at its own machine.

A page elsewhere can point its own name at this server's address (DNS rebinding) and would then pass for the
server's own page: the name in `Host` tells, as the browser still sends the page's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?", re.IGNORECASE)
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


@dataclass(frozen=True)
class Hosts:
    """Names of this machine's loopback, the address that is listened on, and `more` that were allowed.

    On a wildcard address (0.0.0.0, ::) every address is the machine's own; a name never is.
    """

    bound: str
    more: frozenset[str] = frozenset()

    def allows(self, host: str) -> bool:
        """Whether `host`, as a header gives it (with or without a port), names this server."""
        name = host_name(host)
        if name is None:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self.more or name == self.bound.lower():
            return True
        address, bound = ip_address(name), ip_address(self.bound)
        if address is None:
            return False
        return address.is_loopback or address == bound or (bound is not None and bound.is_unspecified)


def hosts_of(bound: str, more: Iterable[str]) -> Hosts:
    """Hosts from settings that were checked."""
    return Hosts(bound, frozenset(name.lower() for name in more))


def is_host(name: str) -> bool:
    """Whether this may be allowed: a name or an address, without scheme, port or path."""
    return ip_address(name) is not None or _NAME.fullmatch(name) is not None


def host_name(host: str) -> str | None:
    """The name or address in a Host header, in lower case; None when it is not one."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    return name if name and parts.netloc == host and "@" not in host else None


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, IPv4 in IPv6 as IPv4; None for a name."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_local(scope: Mapping[str, Any]) -> bool:
    """Whether the client of an ASGI scope is a program on this machine that speaks for itself, not a proxy."""
    address = ip_address(scope["client"][0]) if scope.get("client") else None
    return address is not None and address.is_loopback and _FORWARDED.isdisjoint(name for name, _ in scope["headers"])
