"""Whether another job of a key may join the queue: bounds of the server and of the key, and room for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from h3serve.core.errors import H3Error


class QueueFull(H3Error):
    """No room for another job; says which bound was met."""

    http_status = 429

    def __init__(self, whose: str, waiting: int, why: str = "") -> None:
        super().__init__(f"{whose} already has {waiting} jobs waiting{why}; try again later")


@dataclass(frozen=True)
class Admission:
    """`most` jobs may wait in all. `keys` maps each known key to its own bound, if it has one.

    Half of the queue is kept in equal shares, at least one place each, so that no key can fill it for the others; the
    rest goes to whoever comes first. With one key, or none, all of it does.
    """

    most: int
    keys: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """Places that are kept for each key."""
        return max(1, self.most // (2 * len(self.keys))) if len(self.keys) > 1 else 0

    def check(self, owner: str, waiting: Mapping[str, int]) -> None:
        """Raises QueueFull. `waiting` says how many jobs of each key wait now."""
        own, total, bound = waiting.get(owner, 0), sum(waiting.values()), self.keys.get(owner)
        if bound is not None and own >= bound:
            raise QueueFull("this key", own)
        if total >= self.most:
            raise QueueFull("the server", total)
        kept = sum(max(0, self._share_of(key) - waiting.get(key, 0)) for key in self.keys if key != owner)
        if own >= self.share and total + kept >= self.most:
            raise QueueFull("this key", own, ", and the places that are left are kept for other keys")

    def _share_of(self, key: str) -> int:
        bound = self.keys[key]
        return self.share if bound is None else min(self.share, bound)
