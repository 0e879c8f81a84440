"""API keys: kept as SHA-256 hashes in a JSON file, each with what its holder may do.

A key is 256 random bits, so that a plain hash cannot be turned back by guessing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from h3serve.core.errors import H3Error
from h3serve.system.disk_files import whole_file

_PREFIX = "h3-"


@dataclass(frozen=True)
class Caller:
    """Who calls, and the bounds. An empty name is everybody, when the server has no keys."""

    name: str = ""
    sha256: str = ""
    max_queued: int | None = None
    max_running: int | None = None
    max_priority: int = 0
    is_admin: bool = False  # may use the admin routes: weights, workers


class BadKey(H3Error):
    """No key, or one nobody was given."""

    http_status = 401


class KeyRing:
    """The callers a server knows; with none, everybody may call."""

    def __init__(self, callers: tuple[Caller, ...] = (), *, anybody: Caller | None = None) -> None:
        self._by_hash = {caller.sha256: caller for caller in callers}
        self._anybody = anybody or Caller()

    @property
    def is_open(self) -> bool:
        return not self._by_hash

    @property
    def has_admin(self) -> bool:
        return any(caller.is_admin for caller in self._by_hash.values())

    @property
    def max_queued(self) -> Mapping[str, int | None]:
        """Every caller's name -> how many of its jobs may wait, None where that is not bounded."""
        return {c.name: c.max_queued for c in self._by_hash.values()}

    @property
    def max_running(self) -> Mapping[str, int]:
        """Caller name -> how many of its jobs may run at once, where that is bounded."""
        known = self._by_hash.values()
        return {c.name: c.max_running for c in known if c.max_running is not None}

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this Authorization header; raises BadKey."""
        if self.is_open:
            return self._anybody
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise BadKey("this server wants an API key: send `Authorization: Bearer KEY`")
        caller = self._by_hash.get(hash_key(key.strip()))
        if caller is None:
            raise BadKey("this API key is not known here")
        return caller


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> tuple[Caller, ...]:
    """The callers in a key file; raises H3Error naming what is wrong with it."""
    try:
        callers = tuple(Caller(**entry) for entry in json.loads(path.read_text()))
    except OSError as error:
        raise H3Error(f"the key file {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise H3Error(f"the key file {path} is not a list of keys as `add_key` writes it: {error}") from error
    names = [caller.name for caller in callers]
    if not callers or not all(names) or len(set(names)) != len(names):
        raise H3Error(f"the key file {path} needs at least one key, each with a name of its own")
    return callers


def add_key(path: Path, name: str, *, is_admin: bool = False) -> str:
    """Make a key for `name`, add its hash to the file and return the key: it is shown only here."""
    callers = read_keys(path) if path.exists() else ()
    if not name or any(caller.name == name for caller in callers):
        raise H3Error(f"the key needs a name that is not in {path} yet")
    key = _PREFIX + secrets.token_urlsafe(32)
    entries = [*map(asdict, callers), asdict(Caller(name, hash_key(key), is_admin=is_admin))]
    with whole_file(path, mode=0o600) as part:
        part.write_text(json.dumps(entries, indent=1) + "\n")
    return key
